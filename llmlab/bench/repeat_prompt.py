"""repeat_prompt: is a prompt, or a part of it, cheaper the second time?"""

from dataclasses import replace

from llmlab.bench.plan import REPEAT_VARIANTS, PlannedCell
from llmlab.bench.prompts import OTHER_ENDING, THIRD_ENDING, Prompt
from llmlab.bench.sampling import attempted, tally, wants_more, was_reloaded
from llmlab.bench.session import Answer, Session
from llmlab.garbage import no_collection

WARM = ("again", "same_start")


async def repeat_prompt(session: Session) -> None:
    """Rounds of five prompts: first time, again, new ending, new start, and an unrelated one of the same length.

    A round is one prompt and its kin, so all rows have as many samples: the dear ones decide when it is enough.
    """
    cells = {cell.variant or "": cell for cell in session.plan.cells("repeat_prompt")}
    while unfinished(session, cells) or any(wants_more(session, cells[v]) for v in cells if v not in WARM):
        await play_round(session, cells)


def unfinished(session: Session, cells: dict[str, PlannedCell]) -> bool:
    """Whether an earlier session stopped inside a round."""
    return len({tally(session, cell).last for cell in cells.values()}) > 1


async def play_round(session: Session, cells: dict[str, PlannedCell]) -> None:
    """One round; of a round that an earlier session began only the rest is measured."""
    size = session.plan.repeat_size
    done = {variant: tally(session, cells[variant]).last for variant in REPEAT_VARIANTS}
    repeat = min(done.values()) + 1
    missing = [variant for variant in REPEAT_VARIANTS if done[variant] < repeat]
    first = session.maker.summary(size, "repeat_prompt", repeat)
    prompts = {
        "first": first,
        "again": first,
        "same_start": replace(first, ending=OTHER_ENDING),
        "new_start": first.restart(),
        "control": session.maker.summary(size, "repeat_prompt", repeat, "control"),
    }
    if "first" not in missing and set(missing) & set(WARM):
        await ask(session, "first", prompts["first"], repeat, "warmup")
    for variant in missing:
        await measure(session, cells[variant], prompts[variant], repeat)


async def measure(session: Session, cell: PlannedCell, prompt: Prompt, repeat: int) -> None:
    """One row of the round, and once more where the model was loaded inside it."""
    variant = cell.variant or ""
    session.progress.step(f"repeat_prompt: {variant.replace('_', ' ')}, round {repeat}")
    await session.cool_down()
    answer = await ask(session, variant, prompt, repeat, "measured")
    if was_reloaded(session, [answer.call]):
        # The reloading call has left its prompt in the cache: the same again is warm, and so is its start.
        answer = await ask(session, variant, another(variant, prompt), repeat, "measured")
    attempted(session, cell, [answer.call])


def another(variant: str, prompt: Prompt) -> Prompt:
    """A prompt that stands to the cache as `prompt` did, after `prompt` itself has been read."""
    if variant == "again":
        return prompt
    return replace(prompt, ending=THIRD_ENDING) if variant == "same_start" else prompt.restart()


async def ask(session: Session, variant: str, prompt: Prompt, repeat: int, purpose: str) -> Answer:
    label = session.label(
        purpose=purpose,
        experiment="repeat_prompt",
        variant=variant,
        size=session.plan.repeat_size,
        repeat=repeat,
        cache_state="warm" if variant in WARM else "cold",
    )
    with no_collection():
        answer = await session.ask(prompt.messages, label, num_predict=session.plan.num_predict)
    session.learn(prompt, answer.call)
    return answer
