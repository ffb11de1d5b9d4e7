"""Report: the lesson's two runs through the command line, which runs are chosen, and what an empty store says."""

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Lab
from lesson_runs import burst, keep, lesson_calls, lesson_run, overflow_call, prompt_call

from llmlab.errors import Exit
from llmlab.model import Model
from llmlab.run import Run

QWEN = Model(name="qwen2.5:3b", digest="357c53fb659c5076", quantization="Q4_K_M")


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "lab.db"


@pytest.fixture
def lesson(db: Path) -> tuple[Run, Run]:
    """The lesson's two runs in the store, the first the older one."""
    first, second = (
        keep(db, lesson_run(n, num_ctx=4096, server_kind="ollama", server_version="0.12.6"), lesson_calls(n), QWEN)
        for n in (1, 2)
    )
    return first, second


def as_json(lab: Lab, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(lab("report", *words, "--format", "json").stdout)
    return found


def bench(db: Path, tag: str | None, minute: int, **columns: Any) -> Run:
    started = f"2026-10-05T14:{minute:02d}:00.000Z"
    run = Run(command="bench", tag=tag, bench_version=1, outcome="ok", started_utc=started, **columns)
    return keep(db, run, [prompt_call(100, 130, 7, 19, 8)])


def ids(lab: Lab, *words: str) -> list[str]:
    return [run["id"] for run in as_json(lab, *words)["runs"]]


def verdicts(found: dict[str, Any], run: Run) -> dict[tuple[str | None, str], str]:
    return {
        (entry.get("experiment"), entry["name"]): entry["verdicts"][run.id]["verdict"]
        for entry in found["shape"]
        if run.id in entry["verdicts"]
    }


def test_the_lesson_gives_the_lessons_conclusions(lab: Lab, lesson: tuple[Run, Run]) -> None:
    """Both machines slow down alike as the prompt grows; users tell them apart; each can state the three findings."""
    first, second = lesson
    found = as_json(lab)
    said = verdicts(found, second)
    prompts = ("ttft_ns", "prefill_tokens_per_s", "decode_tokens_per_s")
    assert [said["prompt_length", name] for name in prompts] == ["same shape"] * 3
    assert said[None, "cold_to_warm"] == "same shape"
    assert said["users", "total_tokens_per_s"] == "differs"
    traits = {entry["name"]: entry["runs"] for entry in found["shape"] if "experiment" not in entry}
    assert traits["users_at_ceiling"] == {first.id: 1, second.id: 4}
    assert traits["ceiling_tokens_per_s"] == pytest.approx({first.id: 7.8, second.id: 8.1}, rel=1e-3)
    assert traits["cold_to_warm"] == pytest.approx({first.id: 972.5, second.id: 423}, rel=1e-3)
    assert [len(run["findings"]) for run in found["runs"]] == [3, 3]


def test_the_two_run_tables_have_the_lessons_form(lab: Lab, lesson: tuple[Run, Run]) -> None:
    lines = lab("report", "first", "second").stdout.splitlines()
    rows = [line.split("  ") for line in lines]
    cells = [[text.strip() for text in row if text.strip()] for row in rows]
    assert ["100", "130", "7 s / 5 s", "19 / 28", "8.6 / 4.3", "1", "caution: n = 1"] in cells
    assert ["3,000", "2,745", "194 s / 127 s", "14 / 22", "5.7 / 3.3", "1", "caution: n = 1"] in cells
    assert ["again", "2,745", "0.2 s / 0.3 s", "–", "1", "caution: n = 1"] in cells
    assert ["total speed by users", "1 → 1 → 1.1 → 1.1", "1 → 1.2 → 1.9 → 2.1", "differs (n = 1)"] in cells


def test_differences_come_first(lab: Lab, db: Path) -> None:
    for number, version in ((1, "0.12.6"), (2, "0.13.0")):
        keep(db, lesson_run(number, server_kind="ollama", server_version=version), lesson_calls(number), QWEN)
    out = lab("report").stdout
    assert out.index("May I compare?") < out.index("Prompt length") < out.index("Shape")
    (line,) = [line for line in out.splitlines() if line.startswith("server")]
    assert line.split() == ["server", "ollama", "0.12.6", "ollama", "0.13.0", "caution:", "other", "server"]


def test_runs_that_differ_in_nothing_are_said_to_be_comparable(lab: Lab, db: Path) -> None:
    for tag in "ab":
        run = lesson_run(1, tag=tag, findings_json='{"marks": ["memory is low: 0.4 GiB free"]}')
        keep(db, run, lesson_calls(1), QWEN)
    out = lab("report").stdout
    assert "Yes: nothing that matters differs between the runs." in out
    assert "- b: memory is low: 0.4 GiB free" in out


def test_no_words_mean_the_two_newest_bench_runs(lab: Lab, db: Path) -> None:
    old, older_newest, newest = (bench(db, tag, minute) for tag, minute in (("a", 1), ("b", 2), ("c", 3)))
    keep(db, Run(command="chat", tag="talk"), [])
    assert ids(lab) == [older_newest.id, newest.id]
    assert old.id not in ids(lab)


def test_one_tag_means_its_two_newest_runs_and_a_run_alone_itself(lab: Lab, db: Path) -> None:
    one, two, three, other = (bench(db, tag, m) for tag, m in (("a", 1), ("a", 2), ("a", 3), ("b", 4)))
    assert ids(lab, "a") == [two.id, three.id]
    assert ids(lab, "a", "a") == [two.id, three.id]
    assert ids(lab, "a", "b") == [three.id, other.id]
    assert ids(lab, "b", "a") == [other.id, three.id]
    assert ids(lab, "a", "a", "a", "b") == [one.id, two.id, three.id, other.id]
    assert ids(lab, "b") == [other.id]
    assert ids(lab, one.id[-6:].lower(), two.id) == [one.id, two.id]
    assert ids(lab, one.id) == [one.id]
    assert ids(lab, "a", three.id) == [three.id]


def test_a_word_that_names_nothing_names_the_tags(lab: Lab, db: Path) -> None:
    bench(db, "laptop", 1)
    bench(db, "desktop", 2)
    result = lab("report", "lapdog")
    assert (result.exit_code, result.stdout) == (Exit.USAGE, "")
    assert "lapdog" in result.stderr and "desktop, laptop" in result.stderr


def test_a_run_that_measured_nothing_by_its_command_is_refused(lab: Lab, db: Path) -> None:
    bench(db, "laptop", 1)
    chat = keep(db, Run(command="chat", tag="talk"), [])
    assert lab("report", "talk").exit_code == Exit.USAGE
    result = lab("report", chat.id)
    assert result.exit_code == Exit.USAGE and "is a chat run" in result.stderr


@pytest.mark.parametrize("form", ["table", "md", "csv", "json"])
def test_an_empty_store_says_so_and_is_no_failure(lab: Lab, form: str) -> None:
    result = lab("report", "--format", form)
    assert result.exit_code == Exit.OK
    assert "no bench run" in (result.stdout if form in ("table", "md") else result.stderr)
    assert "llmlab bench --tag laptop" in result.output


def test_one_run_is_reported_alone_with_ranges(lab: Lab, db: Path) -> None:
    calls = [prompt_call(100, 130, s, 19, 8.6) for s in (6.8, 7.1, 7.4)]
    keep(db, lesson_run(1), calls)
    out = lab("report").stdout
    assert "7.1 s (6.8–7.4)" in out
    assert "May I compare?" not in out and " / " not in out.split("Shape")[0].split("\n", 2)[2]


def test_more_than_two_runs_have_a_column_each(lab: Lab, db: Path) -> None:
    for tag, seconds in (("a", 7), ("b", 5), ("c", 3)):
        keep(db, lesson_run(1, tag=tag), [prompt_call(100, 130, seconds, 19, 8.6), *burst(1, 1, 5)])
    out = lab("report", "a", "b", "c").stdout
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "tokens 100 130 130 130 caution: n = 1, weights not known" in lines
    assert "first token 100 7 s 5 s 3 s caution" in lines
    assert "verdicts against a" in out and "verdict on c" in out


def test_a_run_with_other_cells_leaves_gaps_and_no_nonsense(lab: Lab, db: Path) -> None:
    """One lacks 8 users, one has only failures there, one has no speed at all: nothing is divided by them."""
    keep(db, lesson_run(1, tag="a"), [call for users in (1, 8) for call in burst(users, 1, 10)])
    keep(db, lesson_run(1, tag="b"), [call for users in (1, 4) for call in burst(users, 1, 10)])
    failed = burst(8, 1, 10, outcome="error", error="HTTP 503: busy", ttft_ns=None)
    keep(db, lesson_run(1, tag="c"), [*burst(1, 1, 10), *failed])
    keep(db, lesson_run(1, tag="d"), [*burst(1, 1, 10), *burst(8, 1, 10, output_tokens=0)])
    two = {row["size"]: row for row in as_json(lab, "a", "b")["experiments"]["users"]}
    assert [two[size]["comparable"] for size in (1, 4, 8)] == ["caution", "not comparable", "not comparable"]
    assert (two[4]["why"], two[8]["why"]) == (["not measured by a"], ["not measured by b"])
    eight = as_json(lab, "a", "c")["experiments"]["users"][-1]
    assert (eight["comparable"], eight["why"]) == ("not comparable", ["nothing good from c"])
    out = lab("report", "a", "c").stdout
    assert "1 s / –" in out and "- c, 8: HTTP 503: busy" in out
    for word in ("a", "b", "c"):
        result = lab("report", word, "d")
        assert result.exit_code == Exit.OK and "nan" not in result.output.lower()


def test_a_run_with_nothing_good_in_it_is_reported(lab: Lab, db: Path) -> None:
    keep(db, lesson_run(1, outcome="failed"), [prompt_call(100, 130, 7, 19, 8, outcome="error", error="down")] * 3)
    result = lab("report")
    assert result.exit_code == Exit.OK
    assert "nothing good from first" in result.stdout and "- first, 100: down" in result.stdout


def test_overflow_shows_what_was_sent_read_and_remembered(lab: Lab, db: Path) -> None:
    for tag in ("a", "b"):
        calls = [
            *[overflow_call(2, "no_budget", True) for _ in range(3)],
            *[overflow_call(12, "no_budget", word, cut="proved") for word in (False, False, True)],
            overflow_call(12, "truncate_false", None, outcome="error", http_status=400),
            *[overflow_call(12, "budget_pin", True) for _ in range(3)],
        ]
        keep(db, lesson_run(1, tag=tag), calls)
    out = lab("report", "a", "b").stdout
    assert "1 of 3: cut by the server" in out
    assert "refused" in out and "12, budget and pin" in out
    found = {entry["name"]: list(entry["runs"].values()) for entry in as_json(lab, "a", "b")["shape"]}
    assert found["turns_that_lose_the_word"] == [12, 12]


def test_output_goes_to_a_file(lab: Lab, lesson: tuple[Run, Run], tmp_path: Path) -> None:
    target = tmp_path / "report.md"
    target.write_text("something longer than nothing" * 1000, encoding="utf-8")
    result = lab("report", "--format", "md", "--output", str(target))
    assert (result.exit_code, result.stdout) == (Exit.OK, "")
    assert target.read_text(encoding="utf-8") == lab("report", "--format", "md").stdout
    broken = lab("report", "--output", str(tmp_path / "no" / "where.md"))
    assert broken.exit_code == Exit.USAGE and "cannot write" in broken.stderr
