"""overflow: does a word from the start of a conversation survive the window, and does the budget save it?"""

from dataclasses import dataclass, replace

from llmlab import budget, cut
from llmlab.bench.plan import RECALL_PREDICT, PlannedCell
from llmlab.bench.sampling import attempted, tally, wants_more, was_reloaded
from llmlab.bench.session import Answer, Session
from llmlab.bench.words import conversation, fresh_word, pin_pair, recalls
from llmlab.call import Call
from llmlab.errors import LabError, ServerError
from llmlab.garbage import no_collection
from llmlab.messages import Message
from llmlab.tokens import Estimator

WORDING = {
    "no_budget": "no budget",
    "truncate_false": "truncate: false",
    "budget": "budget",
    "budget_pin": "budget and pin",
}


@dataclass(frozen=True, slots=True)
class Talk:
    """One conversation as it is sent; `dropped` messages of it the budget left out."""

    word: str
    messages: tuple[Message, ...]
    dropped: int | None = None


async def overflow(session: Session) -> None:
    """Each row once, then with another word where time allows."""
    cells = [c for c in session.plan.cells("overflow") if session.ollama or c.variant != "truncate_false"]
    # One ratio for all words: another one would move the budget's cut.
    ratio = session.ratio
    while todo := [cell for cell in cells if wants_more(session, cell, session.plan.words)]:
        for cell in todo:
            await sample(session, cell, ratio)


async def sample(session: Session, cell: PlannedCell, ratio: float) -> None:
    """One conversation with a word of its own; where the server counts more than we did, it is fitted once more."""
    repeat = tally(session, cell).last + 1
    session.progress.step(f"overflow: {cell.size} turns, {WORDING[cell.variant or '']}, word {repeat}")
    await session.cool_down()
    try:
        talk = make_talk(session, cell, repeat, ratio)
    except LabError as fault:
        session.failures[cell] += 2
        session.note_once(f"overflow: {fault}")
        return
    answer = await send(session, cell, talk, repeat)
    better = ratio_of_refusal(answer, ratio) if talk.dropped is not None else None
    if better:
        session.keep(replace(answer.call, purpose="probe"), answer.messages, answer.text)
        answer = await send(session, cell, make_talk(session, cell, repeat, better), repeat)
    was_reloaded(session, [answer.call])
    attempted(session, cell, [answer.call])


def make_talk(session: Session, cell: PlannedCell, repeat: int, ratio: float) -> Talk:
    """The conversation of a row, fitted where the row has the budget. Raises Overflow."""
    word = fresh_word(session.words)
    session.words.append(word)
    messages = conversation(session.maker, word, cell.size, session.plan.turn_tokens, "overflow", cell.size, repeat)
    if cell.variant not in ("budget", "budget_pin"):
        return Talk(word, tuple(messages))
    if cell.variant == "budget_pin":
        messages = pin_pair(messages)
    window = budget.window_limit(
        session.plan.num_ctx,
        model_context=session.model.context_length,
        refused_n_ctx=session.num_ctx_loaded,
        num_predict=RECALL_PREDICT,
    )
    fitted = budget.fit(messages, window.limit, Estimator(ratio))
    return Talk(word, fitted.kept, len(fitted.dropped))


async def send(session: Session, cell: PlannedCell, talk: Talk, repeat: int) -> Answer:
    """Ask for the word, and record whether it came back and what the server did to the conversation."""
    label = session.label(
        purpose="measured",
        experiment="overflow",
        variant=cell.variant,
        size=cell.size,
        repeat=repeat,
        messages_dropped=talk.dropped,
        messages_pinned=sum(m.pinned for m in talk.messages),
    )
    truncate = None if cell.variant == "no_budget" else False
    with no_collection():
        answer = await session.ask(talk.messages, label, num_predict=RECALL_PREDICT, truncate=truncate)
    if not answer.ok:
        return answer
    call = replace(answer.call, recalled=recalls(answer.text, talk.word) if answer.text.strip() else None)
    session.keep(call, answer.messages, answer.text)
    judged = await prove(session, replace(answer, call=call))
    session.keep(judged, answer.messages, answer.text)
    return replace(answer, call=judged)


async def prove(session: Session, answer: Answer) -> Call:
    """The call with `cut`: on suspicion the same request is sent with `truncate: false`, and a refusal proves it."""
    call = answer.call
    expected = Estimator(session.ratio).messages(answer.messages)
    read = call.prompt_tokens
    suspicion = cut.suspicion(call, expected, True, session.window)
    if call.recalled and not suspicion:
        return replace(call, cut="no" if read else None)
    if not session.ollama or call.variant != "no_budget":
        return replace(call, cut="suspected" if suspicion else "no" if read else None, cut_evidence=suspicion)
    label = session.label(purpose="probe", experiment="overflow", variant=call.variant, size=call.size)
    probe = await session.ask(answer.messages, label, num_predict=1)
    if isinstance(probe.error, ServerError) and probe.call.http_status == 400:
        refused = cut.refusal(probe.error.body, 400) or cut.Refused()
        return replace(call, cut="proved", cut_evidence=cut.refused_evidence(refused))
    if suspicion:
        return replace(call, cut="suspected", cut_evidence=suspicion)
    accepted = "accepted with truncate: false" if probe.ok else None
    return replace(call, cut="no" if read else None, cut_evidence=accepted)


def ratio_of_refusal(answer: Answer, ratio: float) -> float | None:
    """After a refusal of a fitted conversation: a ratio that fits, from the server's count or 20 % more than ours."""
    if not isinstance(answer.error, ServerError) or answer.call.http_status != 400:
        return None
    refused = cut.refusal(answer.error.body, 400)
    estimate = answer.call.prompt_tokens_estimate
    if refused and refused.n_prompt_tokens and estimate:
        return max(ratio, refused.n_prompt_tokens / estimate * 1.02)
    return ratio / 0.8
