"""users: several users ask at the same moment; who waits, who shares, and what is the total?"""

import asyncio
from dataclasses import replace

from llmlab.bench.lag import LoopLag, moves_a_figure
from llmlab.bench.plan import PlannedCell
from llmlab.bench.precheck import check_spill
from llmlab.bench.sampling import attempted, tally, wants_more, was_reloaded
from llmlab.bench.session import Answer, Session
from llmlab.call import Call, add_flag
from llmlab.garbage import no_collection


async def users(session: Session) -> None:
    """Bursts of each size in turn; a size is left when its bursts are enough."""
    cells = list(session.plan.cells("users"))
    while todo := [cell for cell in cells if wants_more(session, cell)]:
        for cell in todo:
            await sample(session, cell)


async def sample(session: Session, cell: PlannedCell) -> None:
    """One burst, and another where the model was loaded inside it: its rows take the place of the first one's."""
    repeat = tally(session, cell).last + 1
    people = "1 user" if cell.size == 1 else f"{cell.size} users at once"
    session.progress.step(f"users: {people}, burst {repeat}")
    await session.cool_down()
    calls = await burst(session, cell, repeat)
    if was_reloaded(session, calls):
        calls = await burst(session, cell, repeat)
    attempted(session, cell, calls)
    await session.look()
    check_spill(session)


async def burst(session: Session, cell: PlannedCell, repeat: int) -> list[Call]:
    """All users wait at one barrier, connections open and requests built; a failed user takes nothing from the others.

    Ends when every one of them has ended. Raises what stops the run.
    """
    prompts = [session.maker.short(user, repeat) for user in range(cell.size)]
    labels = [
        session.label(
            purpose="measured", experiment="users", size=cell.size, repeat=repeat, user=user + 1, cache_state="cold"
        )
        for user in range(cell.size)
    ]
    await session.client.connect(cell.size)
    barrier, predict = asyncio.Event(), session.plan.users_predict
    with no_collection(), session.progress.still():
        tasks = [
            asyncio.create_task(session.ask(prompt.messages, label, num_predict=predict, start=barrier))
            for prompt, label in zip(prompts, labels, strict=True)
        ]
        await asyncio.sleep(0)
        barrier.set()
        await asyncio.sleep(0)  # now all of them are sent: no answer is kept waiting by that
        async with LoopLag() as lag:
            ended = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ended:
        if isinstance(end, BaseException):
            raise end
    answers = [end for end in ended if isinstance(end, Answer)]
    late = moves_a_figure(lag, [answer.call for answer in answers])
    return [flag_late(session, answer) for answer in answers] if late else [answer.call for answer in answers]


def flag_late(session: Session, answer: Answer) -> Call:
    """Mark a call whose times the loop can have taken too late."""
    call = replace(answer.call, flags=add_flag(answer.call.flags, "lag"))
    session.keep(call, answer.messages, answer.text)
    return call
