"""`llmlab bench` through the command line: several models, formats, resuming, wrong words."""

import json

import pytest

SMALL = ("prompt_length", "--num-ctx", "1024", "--sizes", "100,300", "--repeat", "1", "-n", "12", "--tag", "laptop")


def test_tables_on_stdout_progress_on_stderr(lab, fake, rows):
    result = lab("bench", *SMALL, "--host", fake.url)
    assert result.exit_code == 0
    assert "Prompt length" in result.stdout
    assert "anchor at the start" in result.stderr
    assert "anchor" not in result.stdout
    (run,) = rows("select tag, outcome, num_ctx from runs")
    assert run == {"tag": "laptop", "outcome": "ok", "num_ctx": 1024}


def test_another_format_is_the_report_of_the_run(lab, fake):
    result = lab("bench", *SMALL, "--host", fake.url, "--format", "json")
    found = json.loads(result.stdout)
    assert found["format"] == 1
    assert [row["size"] for row in found["experiments"]["prompt_length"]] == [100, 300]


def test_a_model_that_is_not_there_does_not_stop_the_next(lab, fake, rows):
    result = lab("bench", *SMALL, "--host", fake.url, "-m", "nosuch:1b", "-m", fake.model)
    assert result.exit_code == 4
    assert "nosuch:1b" in result.stderr
    assert rows("select outcome from runs order by started_utc desc limit 1") == [{"outcome": "ok"}]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--sizes", "100,x"), "--sizes"),
        (("--repeat", "often"), "--repeat"),
        (("--sizes", "100,5000", "--num-ctx", "1024"), "5,000"),
        (("--resume",), "no bench run to resume"),
        (("--resume", "ABCDEF"), "ABCDEF"),
        (("nonsense",), "nonsense"),
    ],
)
def test_wrong_words_are_said_before_anything_is_sent(lab, fake, args, words):
    result = lab("bench", *args, "--host", fake.url)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not fake.served


def test_a_complete_run_cannot_be_resumed(lab, fake, rows):
    lab("bench", *SMALL, "--host", fake.url)
    (run,) = rows("select id from runs")
    result = lab("bench", "--resume", run["id"][-6:], "--host", fake.url)
    assert result.exit_code == 2
    assert "complete" in result.stderr


def test_two_runs_make_a_report_of_cells_side_by_side(lab, fake):
    lab("bench", *SMALL, "--host", fake.url)
    lab("bench", *SMALL[:-1], "desktop", "--host", fake.url)
    result = lab("report", "laptop", "desktop")
    assert result.exit_code == 0
    assert " ms / " in result.stdout
    assert "differs" not in result.stdout.partition("Shape")[2]
