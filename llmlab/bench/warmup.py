"""Warm-up: load the model, learn its tokens per character, and find out what it makes of `think` and of system."""

from llmlab.bench.prompts import SHORTEST
from llmlab.bench.session import Answer, Session
from llmlab.errors import ServerError
from llmlab.garbage import no_collection
from llmlab.messages import Message

SHORT_CHARS, LONG_CHARS = 450, 1800
"""Prompts of about 100 and 400 tokens."""
NUM_PREDICT = 8


async def warm_up(session: Session) -> None:
    """Two prompts of the bench's own prose; raises the server's error where it cannot answer them."""
    session.progress.step("warm-up: loading the model")
    session.think = False if session.model.thinks else None
    first = await warm_call(session, SHORT_CHARS)
    if session.think is False and refused(first):
        session.think, session.thinking = None, True
        first = await warm_call(session, SHORT_CHARS)
    check(first)
    load_ns = first.call.load_ns or 0
    if load_ns > 100_000_000:
        session.progress.note(f"load: {load_ns / 1e9:.1f} s (not part of any figure below)")
    await session.look()
    session.progress.step("warm-up: tokens per character")
    await check_system(session, first)
    check(await warm_call(session, LONG_CHARS))
    if session.thinking:
        session.mark("this model always thinks: its thinking is part of every figure")


async def warm_call(session: Session, chars: int) -> Answer:
    prompt = session.maker.prompt(chars, "warmup", chars)
    label = session.label(purpose="warmup", cache_state="cold")
    with no_collection():
        answer = await session.ask(prompt.messages, label, num_predict=NUM_PREDICT)
    session.learn(prompt, answer.call)
    # Accepted but not obeyed is as good as refused, and some servers do not say which models think.
    if answer.call.ttft_ns is not None and thought_first(answer):
        session.thinking = True
    return answer


def thought_first(answer: Answer) -> bool:
    """Whether thinking came before the first piece of the answer, or instead of it."""
    return answer.call.ttft_answer_ns != answer.call.ttft_ns


def refused(answer: Answer) -> bool:
    return isinstance(answer.error, ServerError) and answer.call.http_status == 400


def check(answer: Answer) -> None:
    if answer.error:
        raise answer.error


async def check_system(session: Session, first: Answer) -> None:
    """A template may leave system messages out: then the nonce must stand in the user message.

    The same user message with a longer system message must cost more tokens.
    """
    if not first.call.prompt_tokens:
        return
    rule = "Answer in plain English. " * 12
    label = session.label(purpose="probe", cache_state="cold")
    messages = [Message("system", rule), Message("user", "Hello.")]
    answer = await session.ask(messages, label, num_predict=1)
    if answer.call.prompt_tokens and answer.call.prompt_tokens < SHORTEST * 2 // 3:
        session.maker.fold = True
        session.mark("this model leaves system messages out: prompts are made cold in the user message instead")
