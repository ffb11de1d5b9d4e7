"""repeat_prompt: is a prompt, or a part of it, cheaper the second time?"""

from dataclasses import replace

from llmlab.bench.plan import REPEAT_VARIANTS, PlannedCell
from llmlab.bench.prompts import OTHER_ENDING, Prompt
from llmlab.bench.sampling import attempted, tally, wants_more, was_reloaded
from llmlab.bench.session import Answer, Session, quiet

WARM = ("again", "same_start")


async def repeat_prompt(session: Session) -> None:
    """Rounds of five prompts: first time, again, new ending, new start, and an unrelated one of the same length."""
    cells = {cell.variant or "": cell for cell in session.plan.cells("repeat_prompt")}
    while todo := [variant for variant in REPEAT_VARIANTS if wants_more(session, cells[variant])]:
        # A round is one prompt and its kin: cells that cost little go on as long as the dear ones do, and no longer.
        if set(todo) <= set(WARM):
            break
        await play_round(session, cells)


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
    """One row of the round; where the model was loaded inside it the prefix is gone, so it is sent once more before."""
    variant = cell.variant or ""
    session.progress.step(f"repeat_prompt: {variant.replace('_', ' ')}, round {repeat}")
    await session.cool_down()
    answer = await ask(session, variant, prompt, repeat, "measured")
    if was_reloaded(session, [answer.call]):
        if variant == "same_start":
            await ask(session, "first", replace(prompt, ending=OTHER_ENDING[:-1]), repeat, "warmup")
        answer = await ask(session, variant, prompt if variant in WARM else prompt.restart(), repeat, "measured")
    attempted(session, cell, [answer.call])


async def ask(session: Session, variant: str, prompt: Prompt, repeat: int, purpose: str) -> Answer:
    label = session.label(
        purpose=purpose,
        experiment="repeat_prompt",
        variant=variant,
        size=session.plan.repeat_size,
        repeat=repeat,
        cache_state="warm" if variant in WARM else "cold",
    )
    with quiet():
        answer = await session.ask(prompt.messages, label, num_predict=session.plan.num_predict)
    session.learn(prompt, answer.call)
    return answer
