"""`llmlab doctor`: one line a check, and a self-test that can fail."""

import pytest

from llmlab.fake import FakeServer, Figures
from llmlab.selftest import Compared


def lines(result):
    return [line.split(maxsplit=2) for line in result.stdout.splitlines() if line[:4].strip() in ("ok", "note", "bad")]


def test_names_server_model_window_and_where_the_address_came_from(lab, fake):
    lab("chat", "hi", "--host", fake.url, "-n", "8")
    result = lab("doctor", env={"OLLAMA_HOST": fake.url})
    said = {what: says for _, what, says in lines(result)}
    assert f"ollama 0.32.15 at {fake.url} (from OLLAMA_HOST), reached directly" in said["server"]
    assert said["model"].startswith(fake.model)
    assert "loaded with a window of 4,096" in result.stdout
    assert "1 runs" in said["store"]
    assert result.stdout.splitlines()[-1].startswith("Fit to measure: ")


def test_another_model_and_a_spill_make_it_unfit(lab):
    figures = Figures(other_loaded=("big:70b",), size_bytes=1000, size_vram_bytes=700)
    with FakeServer(figures) as fake:
        lab("chat", "hi", "--host", fake.url, "-m", fake.model, "-n", "8")
        result = lab("doctor", "--host", fake.url, "-m", fake.model)
    assert result.exit_code == 1
    bad = [says for level, _, says in lines(result) if level == "bad"]
    assert any("big:70b" in says for says in bad)
    assert any("only 70 % on the GPU" in says for says in bad)


def test_a_named_server_that_is_not_there_is_bad_but_not_an_error(lab):
    result = lab("doctor", "--host", "127.0.0.1:9")
    assert result.exit_code == 1
    assert any(level == "bad" and what == "server" for level, what, _ in lines(result))


def test_a_broken_database_is_a_line_of_its_own(lab, fake, tmp_path):
    (tmp_path / "lab.db").write_text("this is no database, and long enough to be looked at as one" * 3)
    result = lab("doctor", "--host", fake.url)
    assert result.exit_code == 1
    assert any(level == "bad" and what == "store" for level, what, _ in lines(result))


@pytest.mark.parametrize(
    ("name", "truth", "said", "right"),
    [
        ("_ns", 100_000_000, 104_900_000, True),
        ("_ns", 100_000_000, 105_100_000, False),
        ("_ns", 1_000_000_000, 1_019_000_000, True),
        ("_ns", 1_000_000_000, 1_021_000_000, False),
        ("_per_s", 100.0, 101.9, True),
        ("_per_s", 100.0, 102.1, False),
        ("", 2, 1, False),
        ("", 2, None, False),
    ],
)
def test_a_figure_is_right_within_two_percent_or_five_milliseconds(name, truth, said, right):
    compared = Compared("figure", name, truth, said)
    assert compared.right is right
    assert compared.row()[""] == ("right" if right else "WRONG")


def test_selftest_measures_counts_slots_window_and_cut_of_the_fake_server(lab):
    result = lab("doctor", "--selftest")
    rows = {line.split("  ")[0]: line for line in result.stdout.splitlines()}
    for figure in ("100 tokens: prompt tokens", "slots", "window loaded", "tokens read after a cut", "cuts proved"):
        assert rows[figure].endswith("right")
    assert len([r for r in rows.values() if r.endswith(("right", "WRONG"))]) == 19
