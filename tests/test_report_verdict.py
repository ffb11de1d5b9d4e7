"""Verdict: the same machine twice is the same shape, a machine with another shape is not."""

import random
from collections import Counter
from collections.abc import Callable

import pytest
from lesson_runs import burst, prompt_call, side

from llmlab.call import Call
from llmlab.figures import Figure
from llmlab.report.document import Report
from llmlab.report.verdict import compare_series, tolerance

Noise = Callable[[], float]


def pairs(*values: tuple[list[float], list[float]]) -> list[tuple[Figure, Figure]]:
    return [(Figure.of(a), Figure.of(b)) for a, b in values]  # type: ignore[misc]


def word(*values: tuple[list[float], list[float]], noise: float = 0) -> str:
    return str(compare_series(pairs(*values), noise))


def test_size_does_not_matter_shape_does() -> None:
    assert word(([7], [0.05]), ([60], [0.39]), ([194], [1.3])) == "same shape"
    assert word(([7.0], [3.9]), ([7.3], [4.5]), ([7.8], [7.5])) == "differs (n = 1)"


def test_the_edges_of_the_tolerance() -> None:
    assert word(([1], [1]), ([1.24], [1])) == "same shape"
    assert word(([1], [1]), ([1], [1.24])) == "same shape"
    assert word(([1], [1]), ([1.26], [1])) == "can't tell (n = 1)"
    assert word(([1], [1]), ([1], [1.26])) == "can't tell (n = 1)"
    assert word(([1], [1]), ([1.51], [1])) == "differs (n = 1)"
    assert word(([1], [1]), ([1], [1.51])) == "differs (n = 1)"


def test_three_samples_with_ranges_apart_are_enough() -> None:
    one = [0.99, 1.0, 1.01]
    assert word((one, one), ([1.29, 1.3, 1.31], one)) == "differs (n = 3)"
    assert word((one, one), ([1.01, 1.3, 1.4], one)) == "can't tell (n = 3)"
    assert word((one, one[:2]), ([1.29, 1.3, 1.31], one)) == "can't tell (n = 2)"


def test_a_wait_of_a_few_milliseconds_is_no_base_for_a_difference() -> None:
    """The first of 65 waits took 7 ms, then 11 ms: a busy computer, not another machine."""

    def run(first_ms: float, factor: int = 1) -> list[Call]:
        waits = zip((1, 2, 4), (first_ms, 74 * factor, 210 * factor), strict=True)
        return [c for users, ms in waits for c in burst(users, 1, 1, ttft_ns=int(ms * 1e6), last_piece_ns=10**9)]

    def said(a: list[Call], b: list[Call]) -> str:
        shape = Report.of([side(a, "a"), side(b, "b")]).shape
        return next(str(s.verdicts[1]) for s in shape.series if s.figure == "ttft_ns")

    assert said(run(7), run(12)) == "same shape"
    assert said(run(7), run(7, factor=10)) == "differs (n = 1)"
    assert said(run(700), run(1200)) == "differs (n = 1)"


def test_one_point_in_common_is_nothing_to_compare() -> None:
    assert word(([1], [2])) == "not comparable"
    assert word() == "not comparable"


def test_a_noisy_run_needs_more() -> None:
    assert (tolerance(0), tolerance(0.05), tolerance(0.3)) == (0.25, 0.25, 0.6)
    assert word(([1], [1]), ([1.3], [1])) == "can't tell (n = 1)"
    assert word(([1], [1]), ([1.3], [1]), noise=0.2) == "same shape"


def test_the_range_of_few_samples_is_widened_by_the_noise() -> None:
    three, other = [0.97, 1.0, 1.03], [1.27, 1.3, 1.33]
    assert word((three, three), (other, three)) == "differs (n = 3)"
    assert word((three, three), (other, three), noise=0.1) == "can't tell (n = 3)"
    assert word((three + three, three + three), (other + other, three + three), noise=0.1) == "differs (n = 6)"


def machine(noise: Noise, samples: tuple[int, int, int], slots: int = 4) -> list[Call]:
    """A machine whose every time is multiplied by a draw of `noise`; users past `slots` wait for the ones before."""

    def call(tokens: int, size: int, **columns: object) -> Call:
        prefill = (200 - tokens * 0.02) / noise()
        wait_s = tokens / prefill + 0.05 * noise()
        return prompt_call(size, tokens, wait_s, prefill, (40 - tokens * 0.004) / noise(), **columns)

    def anchor() -> Call:
        return call(256, 256, purpose="anchor", experiment=None)

    calls = [anchor()]
    for size, n in zip((100, 1000, 3000), samples, strict=True):
        calls += [call(size, size) for _ in range(n)]
    calls.append(anchor())
    for _ in range(samples[-1]):
        calls.append(call(3000, 3000, experiment="repeat_prompt", variant="first"))
        calls.append(prompt_call(3000, 3000, 0.1 * noise(), 999, 28, experiment="repeat_prompt", variant="again"))
    calls.append(anchor())
    for users in (1, 2, 4, 8):
        for repeat in range(samples[1]):
            wait_s = 0.3 * (1 + 8 * max(0, users / slots - 1) / 2) * noise()
            calls += burst(users, wait_s, 10 * min(users, slots) / noise(), repeat=repeat)
    return [*calls, anchor(), anchor()]


def words_of(a: list[Call], b: list[Call]) -> Counter[str]:
    shape = Report.of([side(a, "a"), side(b, "b")]).shape
    return Counter(v.word for entry in (*shape.series, *shape.traits) for v in entry.verdicts if v)


@pytest.mark.parametrize("samples", [(5, 3, 1), (1, 1, 1), (5, 5, 5)])
@pytest.mark.parametrize("spread", [0.05, 0.10, 0.15])
def test_one_machine_twice_does_not_come_out_as_differing(spread: float, samples: tuple[int, int, int]) -> None:
    words: Counter[str] = Counter()
    for seed in range(25):
        rng = random.Random(f"{seed} {spread} {samples}")
        noise: Noise = lambda rng=rng: rng.uniform(1 - spread, 1 + spread)  # type: ignore[misc]  # noqa: E731
        words += words_of(machine(noise, samples), machine(noise, samples))
    assert words["differs"] == 0
    assert words["same shape"] > 0.9 * words.total()


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.10])
def test_one_slot_against_four_differs_through_the_noise(spread: float) -> None:
    for seed in range(10):
        rng = random.Random(f"{seed} {spread}")
        noise: Noise = lambda rng=rng: rng.uniform(1 - spread, 1 + spread)  # type: ignore[misc]  # noqa: E731
        one, four = machine(noise, (3, 3, 3), slots=1), machine(noise, (3, 3, 3), slots=4)
        shape = Report.of([side(one, "a"), side(four, "b")]).shape
        said = {(s.experiment, s.figure): s.verdicts[1].word for s in shape.series if s.verdicts[1]}
        assert said["users", "total_tokens_per_s"] == "differs"
        assert said["prompt_length", "ttft_ns"] == "same shape"
