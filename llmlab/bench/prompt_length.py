"""prompt_length: one summary request behind longer and longer texts, cold every time."""

from llmlab.bench.plan import PlannedCell
from llmlab.bench.sampling import attempted, tally, wants_more, was_reloaded
from llmlab.bench.session import Session
from llmlab.garbage import no_collection


async def prompt_length(session: Session) -> None:
    """Measure every size once, then again, so that a drift touches all of them alike."""
    cells = list(session.plan.cells("prompt_length"))
    while todo := [cell for cell in cells if wants_more(session, cell)]:
        for cell in todo:
            await sample(session, cell)


async def sample(session: Session, cell: PlannedCell) -> None:
    """One sample; where the model was loaded inside it, another one right after."""
    repeat = tally(session, cell).last + 1
    session.progress.step(f"prompt_length: {cell.size:,} tokens, sample {repeat}")
    await session.cool_down()
    for attempt in range(2):
        prompt = session.maker.summary(cell.size, "prompt_length", cell.size, repeat, attempt)
        label = session.label(
            purpose="measured", experiment="prompt_length", size=cell.size, repeat=repeat, cache_state="cold"
        )
        with no_collection():
            answer = await session.ask(prompt.messages, label, num_predict=session.plan.num_predict)
        session.learn(prompt, answer.call)
        if not was_reloaded(session, [answer.call]):
            break
    attempted(session, cell, [answer.call])
