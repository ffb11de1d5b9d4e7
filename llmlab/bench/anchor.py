"""The anchor call: the same small cold call again and again through the run."""

from llmlab.bench.plan import ANCHOR_PREDICT, ANCHOR_TOKENS
from llmlab.bench.session import RELOAD_NS, SERVER_KEEP_ALIVE, Session
from llmlab.garbage import no_collection


async def anchor(session: Session, place: str) -> None:
    """Measure one anchor; one that found the model unloaded is measured again once."""
    session.progress.step(f"anchor {place}")
    for _ in range(2):
        prompt = session.maker.summary(ANCHOR_TOKENS, "anchor")
        label = session.label(purpose="anchor", cache_state="cold")
        with no_collection():
            answer = await session.ask(prompt.messages, label, num_predict=ANCHOR_PREDICT)
        session.learn(prompt, answer.call)
        if (answer.call.load_ns or 0) <= RELOAD_NS:
            return


async def last_anchor(session: Session, unload: bool) -> None:
    """The anchor at the end of the run gives the model's time in memory back to the server's default, or ends it."""
    session.keep_alive = 0 if unload else SERVER_KEEP_ALIVE
    await anchor(session, "at the end")
