"""Anchors: drift and noise of a run."""

import pytest
from lesson_runs import anchors, prompt_call

from llmlab.anchors import drift_fraction, is_drifting, noise_floor


def test_a_steady_run_has_neither() -> None:
    assert drift_fraction(anchors([2.0] * 5)) == 0
    assert noise_floor(anchors([2.0] * 5)) == 0


def test_drift_is_the_slope_over_the_run() -> None:
    assert drift_fraction(anchors([2.0, 2.1, 2.2, 2.3, 2.4])) == pytest.approx(0.4 / 2.2)
    assert drift_fraction(anchors([2.4, 2.3, 2.2, 2.1, 2.0])) == pytest.approx(-0.4 / 2.2)


def test_one_hiccup_is_noise_and_no_drift() -> None:
    calls = anchors([2.0, 2.0, 4.0, 2.0, 2.0])
    assert drift_fraction(calls) == 0
    assert noise_floor(calls) == pytest.approx(1.0)


def test_drift_is_told_from_noise() -> None:
    assert is_drifting(anchors([2.0, 2.1, 2.2, 2.3, 2.4]))
    assert not is_drifting(anchors([2.0, 2.3, 1.9, 2.4, 2.2]))
    assert not is_drifting(anchors([2.0, 2.02, 2.04, 2.06]))
    assert not is_drifting([])


def test_a_slower_decode_is_drift_too() -> None:
    slowing = [call for speed in (20, 18, 16) for call in anchors([2.0], decode=speed)]
    assert drift_fraction(slowing) == pytest.approx((1 / 16 - 1 / 20) / (1 / 18))


def test_too_few_anchors_say_nothing() -> None:
    assert drift_fraction(anchors([2.0, 3.0])) is None
    assert noise_floor([]) is None
    assert noise_floor([prompt_call(100, 130, 7, 19, 8)] * 5) is None


def test_an_anchor_that_failed_or_reloaded_is_left_out() -> None:
    bad = [
        prompt_call(256, 256, 60, 100, 20, purpose="anchor", flags="reloaded"),
        prompt_call(256, 256, 60, 100, 20, purpose="anchor", outcome="error"),
    ]
    assert noise_floor([*anchors([2.0, 2.0, 2.0]), *bad]) == 0


def test_the_load_is_no_part_of_an_anchor() -> None:
    loads = [prompt_call(256, 256, 2 + s, 100, 20, purpose="anchor", load_ns=int(s * 1e9)) for s in (0, 0.25, 0)]
    assert noise_floor(loads) == pytest.approx(0, abs=1e-9)
