"""What the user asked of a bench run."""

from dataclasses import dataclass

from llmlab.cells import EXPERIMENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """None means not said: the plan then takes its default, which `quick` makes smaller.

    `experiments` empty means all four; `sizes` prompt tokens; `users` users at once; `turns` long turns of the overflow
    experiment; `repeat` samples per cell, None for as many as 5 samples or 30 s allow; `num_predict` output tokens of
    the three speed experiments; `cooldown_s` is slept before each measured call or burst; `num_ctx` is the window asked
    (None on the OpenAI wire where the server tells it).
    """

    tag: str | None = None
    experiments: tuple[str, ...] = ()
    num_ctx: int | None = None
    sizes: tuple[int, ...] | None = None
    users: tuple[int, ...] | None = None
    turns: tuple[int, ...] | None = None
    repeat: int | None = None
    num_predict: int | None = None
    quick: bool = False
    cooldown_s: float = 0.0
    seed: int = 42
    keep_text: bool = False

    @property
    def wanted(self) -> tuple[str, ...]:
        return tuple(e for e in EXPERIMENTS if e in self.experiments) if self.experiments else EXPERIMENTS
