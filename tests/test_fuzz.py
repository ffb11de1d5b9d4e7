"""Whatever people, servers and files come with: settings, options, rows and reports hold what they promise.

The wires, the budget, the estimate and the API have properties beside their own tests. Run for longer with
`python -m pytest tests/test_fuzz.py --hypothesis-profile=long`.
"""

import io
import json
import math
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmlab.call import CACHE_STATES, CUTS, OUTCOMES, PURPOSES, Call
from llmlab.client import Client
from llmlab.errors import LabError, StoreError, UsageError
from llmlab.listing import Format, print_listing
from llmlab.options import model_options
from llmlab.printable import json_text, printable, printable_line
from llmlab.report.document import Report
from llmlab.report.formats import FORMATS
from llmlab.report.regression import check_same, regressions
from llmlab.report.selection import select
from llmlab.report.side import Side
from llmlab.run import Run
from llmlab.settings import database_path, find_server, parse_keep_alive
from llmlab.store import Store

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
NO_NUMBERS = st.text(st.characters(exclude_categories=(), exclude_characters="nNiI"), max_size=20)
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069]")

# Settings

NAMES_OF_HOSTS = st.from_regex(r"[a-z0-9-]{1,8}(\.[a-z]{1,5})?", fullmatch=True)
HOSTS = (
    st.text(max_size=30)
    | st.from_regex(
        r"(https?://)?([a-z0-9%]{0,6}(:[a-z0-9%]{0,6})?@)?[a-z0-9.:\[\]%_-]{0,18}(:[0-9]{0,6})?(/[a-z0-9/]*)?"
    )
    | st.ip_addresses().map(str)
    | st.builds("[{}]:{}".format, st.ip_addresses(v=6), st.integers(-1, 70_000))
    | st.builds(
        "{}:{}".format, st.from_regex(r"[a-z0-9-]{1,8}(\.[a-z]{1,5})?", fullmatch=True), st.integers(-1, 70_000)
    )
)
PROXIES = st.text(max_size=20) | st.from_regex(
    r"(https?://)?([a-z]{0,4}:[a-z]{0,4}@)?[a-z0-9.\[\]:]{0,12}(:[0-9]{0,5})?"
)
NAMES = ("OLLAMA_HOST", "LLMLAB_API_KEY", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy")
ENVIRONMENTS = st.fixed_dictionaries(
    {}, optional={name: HOSTS if name == "OLLAMA_HOST" else PROXIES for name in NAMES if name}
)


@given(st.none() | HOSTS, ENVIRONMENTS)
@example("http://[::1%", {})
@example("[v1.x]", {})
@example("h", {"HTTP_PROXY": "http://[", "NO_PROXY": "["})
@example("1.2.3.4.5", {"NO_PROXY": "1.2.3.4.5/33,::/0"})
def test_any_environment_names_a_server_that_can_be_asked_or_is_a_usage_error(
    host: str | None, env: dict[str, str]
) -> None:
    try:
        server = find_server(host, env=env)
        client = Client(server)
    except UsageError as error:
        assert str(error).isprintable()
        return
    url = httpx.URL(f"{server.url}/api/chat")
    assert url.scheme in ("http", "https") and url.host and not url.userinfo and not url.query and not url.fragment
    assert 0 < (url.port or 80) < 65_536
    assert client.door.url("/api/chat").raw_path.endswith(b"/api/chat")
    assert server.shown.isprintable()
    client.door.request("POST", "/api/chat", b"{}")


SECRETS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")), max_size=20).map("s3cr3t{}".format)


@given(SECRETS)
def test_no_password_is_shown_however_it_is_written(secret: str) -> None:
    server = find_server(f"http://me:{quote(secret, safe='')}@myhost", env={})
    assert server.user_info == ("me", secret)
    assert server.shown == "http://me:***@myhost:80"
    assert secret not in repr(server) and secret not in str(Client(server))


@given(st.none() | st.text(max_size=12) | st.from_regex(r"[+-]?[0-9.]{0,22}(ns|us|ms|s|m|h)?"))
def test_any_keep_alive_goes_out_as_json_or_is_a_usage_error(text: str | None) -> None:
    try:
        value = parse_keep_alive(text)
    except UsageError:
        return
    assert value is None or isinstance(value, int | str)
    if isinstance(value, int):
        assert abs(value) < 2**63 / 1e9


@given(ANY_TEXT | ANY_TEXT.map("~{}/lab.db".format))
def test_any_database_path_is_a_path_or_a_usage_error(text: str) -> None:
    try:
        assert database_path(env={"LLMLAB_DB": text}).name is not None
    except UsageError as error:
        assert str(error).isprintable()


# Options of the command line

VALUES = ANY_TEXT | st.sampled_from(["0", "-1", "1e999", "NaN", "9" * 5_000, "[" * 5_000, "null", '"x"', "1.5", ""])


@given(st.lists(st.builds("{}={}".format, ANY_TEXT, VALUES) | ANY_TEXT, max_size=4))
@example(["a=1e999", "b=[-1e999]", "c=NaN", "d=" + "[" * 5_000, "e=" + "9" * 5_000])
def test_any_model_options_can_be_sent_or_are_a_usage_error(pairs: list[str]) -> None:
    try:
        options = model_options(pairs)
    except UsageError as error:
        assert str(error).isprintable()
        return
    json.dumps(options, allow_nan=False)
    assert not {"num_ctx", "num_predict", ""} & set(options)


FLAGS = ("--num-ctx", "-n", "-o", "--keep-alive", "--timeout", "--reserve", "-s", "--tag", "--on-overflow", "--api")
WORDS = st.lists(st.tuples(st.sampled_from(FLAGS), VALUES), max_size=4).map(lambda pairs: [w for p in pairs for w in p])


@given(words=WORDS, question=ANY_TEXT)
def test_any_words_on_the_command_line_end_with_an_exit_code(
    lab: Callable[..., Any], words: list[str], question: str
) -> None:
    """Nobody listens at the address: what is said is a usage error, a window too small, or that."""
    result = lab("chat", *words, "--host", "127.0.0.1:9", "--", question)
    assert result.exit_code in (1, 2, 3)
    assert "Error: " in result.stderr and not OBEYED.search(result.stderr)


# What is printed


@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_what_is_printed_drives_no_terminal_and_changes_nothing_else(text: str) -> None:
    shown = printable(text)
    assert not OBEYED.search(shown)
    assert printable(shown) == shown
    if not OBEYED.search(text):
        assert shown == text
    assert len(shown) == len(text) - text.count("\r")
    line = printable_line(text)
    assert line.isprintable() and len(line) == len(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_json_reads_back_and_drives_no_terminal(value: object) -> None:
    text = json_text(value, indent=1)
    assert not OBEYED.search(text)
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == finite(value)


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.none() | st.integers() | st.floats() | ANY_TEXT), max_size=4)
)
def test_a_listing_of_anything_has_lines_of_its_own(rows: list[dict[str, Any]]) -> None:
    for form in Format:
        out = io.StringIO()
        print_listing(rows, ["a", "b"], form, out)
        assert not OBEYED.search(out.getvalue())
        if form is Format.table:
            assert len(out.getvalue().splitlines()) == len(rows) + 1


# Rows

FIGURES = st.none() | st.integers(-(2**70), 2**70) | st.floats() | st.booleans() | ANY_TEXT | st.binary(max_size=3)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    name: FIGURES for name, value in Call().row().items() if name not in ("id", "run_id", "model_id", "started_utc")
}
COLUMNS |= {
    "purpose": st.sampled_from([*PURPOSES, "other", None]),
    "outcome": st.sampled_from([*OUTCOMES, "great"]),
    "cache_state": st.sampled_from([*CACHE_STATES, "hot"]),
    "cut": st.sampled_from([*CUTS, None, "maybe"]),
    "flags": st.none() | ANY_TEXT,
}


@given(rows=st.lists(st.fixed_dictionaries({}, optional=COLUMNS), min_size=1, max_size=4), answer=ANY_TEXT)
def test_any_row_is_kept_or_refused_alone(tmp_path, rows: list[dict[str, Any]], answer: str) -> None:
    run = Run(command="bench", tag=answer)
    calls = [Call(run_id=run.id, **row) for row in rows]
    good = [Call(run_id=run.id, seq=10_000 + n) for n in range(2)]
    with Store.open(tmp_path / "lab.db") as store:
        store.start_run(run)
        for call in [good[0], *calls, good[1]]:
            store.add(call, texts=(answer, answer))
        try:
            store.flush()
        except StoreError as error:
            assert "All other rows are saved" in str(error)
        kept = {call.id: call for call in store.calls(run.id)}
        assert {call.id for call in good} <= set(kept)
        valid = [c for c in calls if c.purpose in PURPOSES and c.outcome in OUTCOMES and c.cache_state in CACHE_STATES]
        for call in valid:
            if call.cut in (*CUTS, None) and call.id in kept:
                row = kept[call.id]
                assert row.outcome == call.outcome
                assert all(v is None or not isinstance(v, float) or math.isfinite(v) for v in row.row().values())
        Report.of(select(store, [run.id]))


# Reports

NS = st.none() | st.sampled_from([0, 1, 10**6, 10**9, 7 * 10**9, 10**13, 2**63 - 1])
COUNT = st.none() | st.sampled_from([0, 1, 7, 8, 16, 100, 130, 4096, 2**63 - 1])
EXPERIMENTS = ("prompt_length", "repeat_prompt", "users", "overflow", "another")
VARIANTS = (None, "first", "again", "same_start", "control", "no_budget", "truncate_false", "budget_pin", "odd")
ROWS = st.fixed_dictionaries(
    {
        "experiment": st.sampled_from(EXPERIMENTS),
        "variant": st.sampled_from(VARIANTS),
        "size": st.sampled_from([None, 0, 1, 2, 8, 100, 3000, 2**63 - 1]),
        "purpose": st.sampled_from(["measured", "measured", "measured", "anchor"]),
        "outcome": st.sampled_from(["ok", "ok", "ok", *OUTCOMES]),
        "repeat": st.sampled_from([None, 1, 2, 3]),
        "user": st.sampled_from([None, 1, 2]),
        "cache_state": st.sampled_from(CACHE_STATES),
    },
    optional={
        **{name: NS for name in Call().row() if name.endswith("_ns")},
        **dict.fromkeys(("prompt_tokens", "cached_tokens", "output_tokens"), COUNT),
        **dict.fromkeys(("prompt_tokens_estimate", "num_ctx_loaded"), COUNT),
        "cut": st.sampled_from([None, *CUTS]),
        "recalled": st.sampled_from([None, True, False]),
        "http_status": st.sampled_from([None, 200, 400, 500]),
        "flags": st.sampled_from([None, "reloaded", "buffered", "short_answer,lag", "no_answer", "|<b>"]),
        "error": st.none() | NO_NUMBERS,
    },
)
JSON_TEXT = st.sampled_from(
    [None, "", "{", "[]", '{"marks": 7}', '{"marks": ["a\\u001b", null]}', '{"num_predict": "x"}']
)
RUNS = st.fixed_dictionaries(
    {},
    optional={
        "tag": st.none() | st.sampled_from(["a", "a", "", "|", "<b>"]) | NO_NUMBERS,
        **dict.fromkeys(("num_ctx", "num_ctx_loaded", "size_bytes", "size_vram_bytes"), COUNT),
        **dict.fromkeys(("slots", "bench_version"), COUNT),
        "plan_json": JSON_TEXT,
        "findings_json": JSON_TEXT,
        "load_average": st.sampled_from([None, 0.0, 0.9, 1e300]),
        "power": st.sampled_from([None, "mains", "battery"]),
        "server_kind": st.none() | NO_NUMBERS,
        "outcome": st.sampled_from([None, "ok", "failed", "interrupted"]),
        "machine_id": st.sampled_from([None, "one", "two"]),
    },
)


@st.composite
def sides(draw: st.DrawFn) -> list[Side]:
    found = []
    for number, run in enumerate(draw(st.lists(RUNS, max_size=3))):
        rows = draw(st.lists(ROWS, max_size=14))
        calls = [Call(seq=seq, **row) for seq, row in enumerate(rows)]
        found.append(
            Side(run=Run(command="bench", **run), calls=calls, model=None, machine=None, label=f"run {number}")
        )
    return found


@given(sides(), st.sampled_from([0.0, 10.0]))
def test_a_report_of_any_rows_has_no_traceback_and_no_figure_that_is_none(found: list[Side], percent: float) -> None:
    report = Report.of(found)
    for form, write in FORMATS.items():
        out = io.StringIO()
        write(report, out)
        text = out.getvalue()
        assert not re.search(r"\b(nan|inf|Infinity|NaN)\b", text), form
        assert not OBEYED.search(text), form
        if form == "json":
            json.loads(text, parse_constant=lambda name: pytest.fail(name))
    try:
        check_same(report)
    except LabError:
        return
    assert all(isinstance(line, str) for line in regressions(report, percent))
