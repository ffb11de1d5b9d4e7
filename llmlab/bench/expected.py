"""Expected: how long the rest of a run will take, from its own anchors."""

from math import ceil

from llmlab.bench.plan import RECALL_PREDICT, PlannedCell
from llmlab.bench.sampling import tally
from llmlab.bench.session import Session

SHORT_PROMPT = 64
GUESS = (0.01, 0.05)
"""Seconds per prompt token and per output token where nothing was measured yet."""


def remaining_s(session: Session) -> float:
    """Seconds for the samples that are still to come."""
    return sum(cell_s(session, cell) for cell in session.plan.cells())


def cell_s(session: Session, cell: PlannedCell) -> float:
    plan = session.plan
    cost = sample_s(session, cell)
    most = plan.words if cell.experiment == "overflow" else plan.most_samples
    wanted = plan.repeat or max(1, min(most, ceil(plan.cell_s / cost)))
    return max(0, wanted - tally(session, cell).samples) * (cost + plan.cooldown_s)


def sample_s(session: Session, cell: PlannedCell) -> float:
    """Seconds of one sample: users are taken to share a fixed total, and the server to reuse a repeated prompt."""
    plan = session.plan
    prefill, decode = speeds(session)
    if cell.experiment == "users":
        return cell.size * (SHORT_PROMPT * prefill + plan.users_predict * decode)
    if cell.experiment == "overflow":
        return min(cell.size * plan.turn_tokens, plan.num_ctx) * prefill + RECALL_PREDICT / 2 * decode
    read = SHORT_PROMPT if cell.variant in ("again", "same_start") else cell.size
    return read * prefill + plan.num_predict * decode


def speeds(session: Session) -> tuple[float, float]:
    """Seconds per prompt token and per output token, from the newest anchor."""
    prefill, decode = GUESS
    for call in reversed(session.calls):
        if call.purpose == "anchor" and call.prompt_tokens and call.ttft_ns:
            prefill = max(1, call.ttft_ns - (call.load_ns or 0)) / call.prompt_tokens / 1e9
            speed = call.user_tokens_per_s or call.decode_tokens_per_s
            return prefill, 1 / speed if speed else decode
    return prefill, decode
