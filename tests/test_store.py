"""The store: what goes in comes out, what SQLite cannot hold is noted, and runs are found by what people type."""

import asyncio
import os
import stat
import sys
from dataclasses import replace

import pytest

from llmlab.call import Call
from llmlab.errors import StoreError, UsageError
from llmlab.machine import Machine
from llmlab.model import Model
from llmlab.run import Run
from llmlab.store import Store

MACHINE = Machine(id="01J0000000000000000000000A", os="Linux", cpu="a | b", cores_physical=4, ram_bytes=8 << 30)
MODEL = Model(name="demo:latest", digest="aaa", size_bytes=5, capabilities=("thinking", "tools"))
FULL = Call(
    id="01J0000000000000000000000C",
    seq=3,
    num_ctx=4096,
    num_ctx_loaded=2048,
    purpose="measured",
    experiment="overflow",
    variant="budget",
    size=12,
    repeat=1,
    user=2,
    started_utc="2025-06-01T12:00:00.000Z",
    prompt_chars=400,
    prompt_tokens_estimate=100,
    messages_sent=5,
    messages_pinned=2,
    messages_dropped=3,
    prompt_tokens=110,
    cached_tokens=0,
    cache_state="cold",
    output_tokens=9,
    pieces=8,
    connect_ns=1,
    ttft_ns=2,
    ttft_answer_ns=3,
    last_piece_ns=4,
    stall_max_ns=5,
    total_ns=6,
    server_total_ns=7,
    load_ns=8,
    prefill_ns=9,
    prefill_source="client",
    decode_ns=10,
    in_flight=1,
    cut="proved",
    cut_evidence="refused with truncate false",
    recalled=False,
    outcome="incomplete",
    done_reason="length",
    http_status=200,
    error="the stream ended",
    timing_source="socket",
    flags="short_answer",
    prompt_hash="0123456789abcdef",
)


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "lab.db") as opened:
        yield opened


def run_with(store: Store, *calls: Call, **columns: object) -> Run:
    run = Run(command="bench", **columns)
    store.start_run(run)
    for call in calls:
        store.add(replace(call, run_id=run.id))
    store.flush()
    return run


def test_records_come_back_as_they_were(store):
    store.save_machine(MACHINE)
    store.save_model(MODEL)
    run = Run(command="bench", tag="laptop", machine_id=MACHINE.id, model_id=MODEL.id, load_average=0.25, seed=-7)
    store.start_run(run)
    call = replace(FULL, run_id=run.id, model_id=MODEL.id)
    store.add(call, texts=('[{"role": "user"}]', "an answer"))
    store.flush()
    assert store.calls(run.id) == [call]
    assert store.runs() == [run]
    assert store.machine(MACHINE.id) == MACHINE
    assert store.model(MODEL.id) == MODEL
    assert list(store.db["texts"].rows) == [
        {"call_id": call.id, "prompt_json": '[{"role": "user"}]', "answer": "an answer"}
    ]
    assert next(iter(store.db["machines"].rows))["class"] == MACHINE.class_id


def test_the_full_call_leaves_no_field_empty():
    assert [name for name, value in FULL.row().items() if value is None] == ["run_id", "model_id"]


def test_unknown_machines_and_models_are_none(store):
    assert store.machine(None) is None
    assert store.model("nowhere") is None


@pytest.mark.parametrize("text", ["thinking", "{}", "7", ""])
def test_capabilities_that_another_program_wrote_are_no_traceback(store, text):
    store.save_model(MODEL)
    store.flush()
    store.db["models"].update(MODEL.id, {"capabilities": text})
    assert store.model(MODEL.id) == replace(MODEL, capabilities=None)


def test_calls_come_in_the_order_they_were_made(store):
    run = run_with(store, Call(seq=2), Call(seq=10), Call(seq=1))
    assert [call.seq for call in store.calls(run.id)] == [1, 2, 10]


def test_updates_change_the_run_and_only_the_run(store):
    run, other = run_with(store), run_with(store)
    store.update_run(run.id, outcome="ok", num_ctx_loaded=2048)
    store.flush()
    assert store.find_run(run.id) == replace(run, outcome="ok", num_ctx_loaded=2048)
    assert store.find_run(other.id) == other


def test_updating_a_column_there_is_not_is_refused_at_once(store):
    with pytest.raises(TypeError, match="no column finished"):
        store.update_run("x", finished="now")


def test_a_call_added_again_replaces_its_row(store):
    call = Call(cut="suspected")
    run = run_with(store, call)
    store.add(replace(call, run_id=run.id, cut="proved"))
    store.flush()
    assert [c.cut for c in store.calls(run.id)] == ["proved"]


def test_what_is_known_of_a_model_is_not_forgotten(store):
    store.save_model(MODEL)
    store.save_model(Model(name=MODEL.name, digest=MODEL.digest, quantization="Q4_K_M"))
    store.flush()
    assert store.model(MODEL.id) == replace(MODEL, quantization="Q4_K_M")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), float("-inf"), 2**64 - 1, 2**63, -1, -(2**63) - 1, 0.5, "12", b"1", [1], {}]
)
def test_a_figure_that_cannot_be_held_is_null_with_a_note_and_the_rest_is_kept(store, value):
    run = run_with(store, replace(FULL, total_ns=value))
    (call,) = store.calls(run.id)
    assert call == replace(FULL, run_id=run.id, total_ns=None, flags="short_answer,unstorable_total_ns")


@pytest.mark.parametrize("column", ["done_reason", "error", "variant", "timing_source", "cut_evidence"])
@pytest.mark.parametrize("value", [{"type": "stop"}, ["stop"], b"stop", float("nan")])
def test_what_is_no_text_is_null_with_a_note_and_the_rest_is_kept(store, column, value):
    run = run_with(store, replace(FULL, **{column: value}))
    (call,) = store.calls(run.id)
    flags = ",".join(sorted(["short_answer", f"unstorable_{column}"]))
    assert call == replace(FULL, run_id=run.id, flags=flags, **{column: None})


def test_a_whole_number_that_came_as_a_float_is_a_whole_number(store):
    run = run_with(store, Call(total_ns=12.0))
    assert store.db.execute("SELECT typeof(total_ns), total_ns FROM calls").fetchall() == [("integer", 12)]
    assert store.calls(run.id)[0].flags is None


def test_the_largest_figure_is_held(store):
    run = run_with(store, Call(decode_ns=2**63 - 1))
    assert store.calls(run.id)[0].decode_ns == 2**63 - 1


def test_averages_are_of_the_figures_that_are_figures(store):
    run_with(store, *(Call(ttft_ns=value) for value in (float("nan"), float("inf"), 40)))
    assert store.db.execute("SELECT avg(ttft_ns) FROM calls").fetchone() == (40.0,)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_run_with_a_bad_figure_is_kept(store, value):
    assert store.find_run(run_with(store, load_average=value).id).load_average is None


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("caf\u00e9 \U0001f600 \u4f60", "caf\u00e9 \U0001f600 \u4f60"),
        ("lone \ud800 surrogate", "lone \ufffd surrogate"),
        ("\udc00", "\ufffd"),
        ("a pair \ud83d\ude00", "a pair \U0001f600"),
        ("line\nbreak\u2028 \0 end", "line\nbreak\u2028 \0 end"),
    ],
)
def test_any_text_can_be_kept(store, text, kept):
    run = run_with(store, Call(error=text), tag=text)
    store.add(Call(id="with-texts", run_id=run.id), texts=(text, text))
    store.flush()
    assert store.runs()[0].tag == kept
    assert {call.error for call in store.calls(run.id)} == {kept, None}
    assert next(iter(store.db["texts"].rows)) == {"call_id": "with-texts", "prompt_json": kept, "answer": kept}


def test_a_row_the_schema_refuses_is_told_once_and_holds_nobody_up(store):
    run = run_with(store)
    store.add(Call(run_id=run.id, seq=1))
    store.add(Call(run_id="no such run"))
    store.add(Call(run_id=run.id, outcome="great"))
    store.add(Call(run_id=run.id, purpose=None))
    store.add(Call(run_id=run.id, seq=2))
    with pytest.raises(StoreError, match=r"refused 3 rows: FOREIGN KEY constraint failed\. All other rows are saved"):
        store.flush()
    store.flush()
    assert [call.seq for call in store.calls(run.id)] == [1, 2]


async def test_saved_waits_for_the_rows_and_not_in_the_loop(store):
    run = Run(command="chat")
    store.start_run(run)
    calls = [Call(run_id=run.id, seq=seq) for seq in range(1200)]

    async def record(call: Call) -> None:
        store.add(call)
        await store.saved()

    await asyncio.gather(*map(record, calls))
    assert store.calls(run.id) == calls


async def test_who_is_cancelled_while_waiting_loses_no_row(store):
    run = Run(command="chat")
    store.start_run(run)
    store.add(Call(run_id=run.id))
    waiting = asyncio.create_task(store.saved())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await store.saved()
    assert len(store.calls(run.id)) == 1


def test_closing_saves_and_may_be_done_twice(tmp_path):
    store = Store.open(tmp_path / "lab.db")
    run = Run(command="chat")
    store.start_run(run)
    store.close()
    store.close()
    with Store.read(tmp_path / "lab.db") as again:
        assert again.runs() == [run]
    with pytest.raises(StoreError, match="not open for writing"):
        store.add(Call())


def test_a_store_for_reading_does_not_write(store):
    with Store.read(store.path) as reading, pytest.raises(StoreError, match="not open for writing"):
        reading.start_run(Run(command="chat"))


async def test_a_store_for_reading_has_nothing_to_save(store):
    with Store.read(store.path) as reading:
        reading.flush()
        await reading.saved()


def test_a_file_that_is_not_there_reads_as_empty_and_is_not_made(tmp_path):
    with Store.read(tmp_path / "none" / "lab.db") as store:
        assert store.runs() == []
        with pytest.raises(UsageError, match=r"no run or tag 'laptop'.*no runs yet.*llmlab bench"):
            store.find_run("laptop")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lab.db", "a b?c#d%20.db", "caf\u00e9.db", "-.db"])
def test_any_file_name_will_do(tmp_path, name):
    path = tmp_path / "deep" / "folder" / name
    with Store.open(path) as store:
        run = run_with(store)
    with Store.read(path) as store:
        assert store.runs() == [run]
    assert [p.name for p in path.parent.iterdir()] == [name]


def test_a_relative_path_stays_where_it_was_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from pathlib import Path

    with Store.open(Path("lab.db")) as store:
        run_with(store)
    assert [p.name for p in tmp_path.iterdir()] == ["lab.db"]


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions")
def test_a_new_file_is_private_and_an_old_one_keeps_its_permissions(tmp_path):
    path = tmp_path / "lab.db"
    before = os.umask(0)
    try:
        with Store.open(path) as store:
            run_with(store)
            assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
        path.chmod(0o644)
        Store.open(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_the_file_is_in_wal_mode_with_foreign_keys(store):
    assert store.db.journal_mode == "wal"
    assert store.db.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_runs_come_newest_first(store):
    runs = [
        run_with(store, tag=tag, started_utc=f"2025-01-0{day}T00:00:00Z") for day, tag in ((2, "b"), (3, "a"), (1, "a"))
    ]
    chat = Run(command="chat", started_utc="2025-01-04T00:00:00Z")
    store.start_run(chat)
    store.flush()
    assert store.runs() == [chat, runs[1], runs[0], runs[2]]
    assert store.runs("bench", limit=2) == [runs[1], runs[0]]
    assert store.runs(tag="a") == [runs[1], runs[2]]
    assert store.runs("chat", tag="a") == []


def test_a_run_is_found_by_id_its_end_or_its_tag(store):
    older = run_with(store, id="01J0000000000000000ABCDEFG", tag="laptop", started_utc="2025-01-01T00:00:00Z")
    newer = run_with(store, id="01J0000000000000000ABCDEFH", tag="laptop", started_utc="2025-01-02T00:00:00Z")
    assert store.find_run(older.id) == store.find_run("BCDEFG") == store.find_run("abcdefg") == older
    assert store.find_run("laptop") == newer


def test_a_tag_can_be_meant_for_one_command(store):
    bench = run_with(store, tag="laptop", started_utc="2025-01-01T00:00:00Z")
    chat = Run(command="chat", tag="laptop", started_utc="2025-01-02T00:00:00Z")
    store.start_run(chat)
    store.flush()
    assert store.find_run("laptop") == chat
    assert store.find_run("laptop", command="bench") == bench


def test_an_ending_that_fits_two_runs_is_refused_with_both(store):
    ids = ["01J000000000000000000TWICE", "02J000000000000000000TWICE"]
    for run_id in ids:
        run_with(store, id=run_id)
    with pytest.raises(UsageError, match=rf"fits 2 runs.*{ids[0]}.*{ids[1]}"):
        store.find_run("0twice")
    assert store.find_run(ids[1]).id == ids[1]


def test_an_unknown_word_names_the_tags_there_are(store):
    run_with(store)
    with pytest.raises(UsageError, match="No run has a tag"):
        store.find_run("desktop")
    run_with(store, tag="laptop")
    run_with(store, tag="server")
    with pytest.raises(UsageError, match=r"no run or tag 'desktop'.*Tags there are: (server, laptop|laptop, server)"):
        store.find_run("desktop")


@pytest.mark.parametrize("word", ["", "%", "______", "' OR 1=1 --", "\ud800"])
def test_odd_words_name_no_run(store, word):
    run_with(store, tag="laptop")
    with pytest.raises(UsageError, match="no run or tag"):
        store.find_run(word)


def test_calibration_takes_the_newest_uncut_good_calls_of_one_model(store):
    other = Model(name="other")
    store.save_model(MODEL)
    store.save_model(other)
    good = {"model_id": MODEL.id, "prompt_tokens_estimate": 10, "prompt_tokens": 11}
    for call in (
        Call(**{**good, "prompt_tokens": 20}),
        Call(**good, cut="suspected"),
        Call(**good, cut="proved"),
        Call(**good, outcome="error"),
        Call(**{**good, "prompt_tokens": None}),
        Call(**{**good, "prompt_tokens_estimate": None}),
        Call(**{**good, "prompt_tokens_estimate": 0}),
        Call(**{**good, "model_id": other.id, "prompt_tokens": 99}),
        Call(**{**good, "prompt_tokens": 21}, cut="no"),
        Call(**{**good, "prompt_tokens": 22}),
    ):
        store.add(call)
    store.flush()
    assert store.calibration_pairs(MODEL.id) == [(10, 22), (10, 21), (10, 20)]
    assert store.calibration_pairs(MODEL.id, limit=1) == [(10, 22)]
    assert store.calibration_pairs("unknown") == []
