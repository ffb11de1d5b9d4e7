"""The schema of an llmlab database, as numbered steps that only ever move forward.

`sqlite-utils migrate` runs this file with exec, so it imports nothing of llmlab. A change is a new function at the end.
"""

from sqlite_utils import Database, Migrations

migrations = Migrations("llmlab")


@migrations()
def m001_tables(db: Database) -> None:
    """Every column has its type written down: a type guessed from a first row that holds NULL would be TEXT."""
    # Which computers measured? `id` is random, so that two machines of one type stay two; `class` tells the type.
    db.execute("""
        CREATE TABLE machines (
            id TEXT PRIMARY KEY NOT NULL,
            class TEXT NOT NULL,
            os TEXT,
            os_version TEXT,
            arch TEXT,
            cpu TEXT,
            cores_physical INTEGER CHECK (cores_physical >= 0),
            cores_logical INTEGER CHECK (cores_logical >= 0),
            ram_bytes INTEGER CHECK (ram_bytes >= 0),
            gpu TEXT,
            gpu_memory_bytes INTEGER CHECK (gpu_memory_bytes >= 0)
        )
    """)
    # Which weights answered? The digest tells, not the name: `:latest` moves.
    db.execute("""
        CREATE TABLE models (
            id TEXT PRIMARY KEY NOT NULL,
            name TEXT NOT NULL,
            digest TEXT,
            family TEXT,
            parameter_size TEXT,
            quantization TEXT,
            context_length INTEGER CHECK (context_length >= 0),
            size_bytes INTEGER CHECK (size_bytes >= 0),
            capabilities TEXT
        )
    """)
    # What was done, where, with which server and settings, and may it be compared with another run?
    db.execute("""
        CREATE TABLE runs (
            id TEXT PRIMARY KEY NOT NULL,
            command TEXT NOT NULL,
            tag TEXT,
            machine_id TEXT REFERENCES machines(id),
            model_id TEXT REFERENCES models(id),
            server_kind TEXT,
            server_version TEXT,
            num_ctx INTEGER CHECK (num_ctx >= 0),
            num_ctx_loaded INTEGER CHECK (num_ctx_loaded >= 0),
            size_bytes INTEGER CHECK (size_bytes >= 0),
            size_vram_bytes INTEGER CHECK (size_vram_bytes >= 0),
            slots INTEGER CHECK (slots >= 0),
            power TEXT CHECK (power IN ('mains', 'battery')),
            load_average REAL CHECK (load_average >= 0),
            seed INTEGER,
            options_json TEXT,
            plan_json TEXT,
            bench_version INTEGER CHECK (bench_version >= 0),
            llmlab_version TEXT,
            started_utc TEXT NOT NULL,
            finished_utc TEXT,
            outcome TEXT CHECK (outcome IN ('ok', 'failed', 'interrupted')),
            findings_json TEXT
        )
    """)
    # What did each request cost, and what became of it? NULL is not reported, which is not 0.
    db.execute("""
        CREATE TABLE calls (
            id TEXT PRIMARY KEY NOT NULL,
            run_id TEXT REFERENCES runs(id),
            seq INTEGER CHECK (seq >= 0),
            model_id TEXT REFERENCES models(id),
            num_ctx INTEGER CHECK (num_ctx >= 0),
            num_ctx_loaded INTEGER CHECK (num_ctx_loaded >= 0),
            purpose TEXT NOT NULL CHECK (purpose IN ('answer', 'measured', 'warmup', 'anchor', 'probe', 'summary')),
            experiment TEXT,
            variant TEXT,
            size INTEGER CHECK (size >= 0),
            repeat INTEGER CHECK (repeat >= 0),
            user INTEGER CHECK (user >= 0),
            started_utc TEXT NOT NULL,
            prompt_chars INTEGER CHECK (prompt_chars >= 0),
            prompt_tokens_estimate INTEGER CHECK (prompt_tokens_estimate >= 0),
            messages_sent INTEGER CHECK (messages_sent >= 0),
            messages_pinned INTEGER CHECK (messages_pinned >= 0),
            messages_dropped INTEGER CHECK (messages_dropped >= 0),
            prompt_tokens INTEGER CHECK (prompt_tokens >= 0),
            cached_tokens INTEGER CHECK (cached_tokens >= 0),
            cache_state TEXT NOT NULL CHECK (cache_state IN ('cold', 'warm', 'unknown')),
            output_tokens INTEGER CHECK (output_tokens >= 0),
            pieces INTEGER CHECK (pieces >= 0),
            connect_ns INTEGER CHECK (connect_ns >= 0),
            ttft_ns INTEGER CHECK (ttft_ns >= 0),
            ttft_answer_ns INTEGER CHECK (ttft_answer_ns >= 0),
            last_piece_ns INTEGER CHECK (last_piece_ns >= 0),
            stall_max_ns INTEGER CHECK (stall_max_ns >= 0),
            total_ns INTEGER CHECK (total_ns >= 0),
            server_total_ns INTEGER CHECK (server_total_ns >= 0),
            load_ns INTEGER CHECK (load_ns >= 0),
            prefill_ns INTEGER CHECK (prefill_ns >= 0),
            prefill_source TEXT CHECK (prefill_source IN ('server', 'client')),
            decode_ns INTEGER CHECK (decode_ns >= 0),
            in_flight INTEGER CHECK (in_flight >= 0),
            cut TEXT CHECK (cut IN ('no', 'suspected', 'proved')),
            cut_evidence TEXT,
            recalled INTEGER CHECK (recalled IN (0, 1)),
            outcome TEXT NOT NULL CHECK (outcome IN ('ok', 'error', 'timeout', 'cancelled', 'incomplete')),
            done_reason TEXT,
            http_status INTEGER CHECK (http_status >= 0),
            error TEXT,
            timing_source TEXT,
            flags TEXT,
            prompt_hash TEXT
        )
    """)
    # One run out of a million calls, for report; one model's newest calls, to calibrate the token estimate.
    db.execute("CREATE INDEX calls_by_run ON calls(run_id)")
    db.execute("CREATE INDEX calls_by_model ON calls(model_id)")
    # The newest runs first, without summing up all the others.
    db.execute("CREATE INDEX runs_by_start ON runs(started_utc)")
    # What was asked and answered? Empty unless the user said --keep-text.
    db.execute("""
        CREATE TABLE texts (
            call_id TEXT PRIMARY KEY NOT NULL REFERENCES calls(id),
            prompt_json TEXT,
            answer TEXT
        )
    """)


@migrations()
def m002_views(db: Database) -> None:
    """Rates are views, so that a definition can be mended later without touching what was measured."""
    for view in ("run_summary", "cells", "call_rates"):
        db.execute(f"DROP VIEW IF EXISTS {view}")
    # How fast was each call, in seconds and tokens per second? A rate that would mislead is NULL.
    db.execute("""
        CREATE VIEW call_rates AS
        SELECT
            id, run_id, seq, model_id, purpose, experiment, variant, size, repeat, user, started_utc, num_ctx, outcome,
            cut, recalled, cache_state, flags, prompt_tokens, cached_tokens, output_tokens, in_flight,
            connect_ns / 1e9 AS connect_s,
            ttft_ns / 1e9 AS ttft_s,
            ttft_answer_ns / 1e9 AS ttft_answer_s,
            last_piece_ns / 1e9 AS last_piece_s,
            stall_max_ns / 1e9 AS stall_max_s,
            total_ns / 1e9 AS total_s,
            load_ns / 1e9 AS load_s,
            prefill_ns / 1e9 AS prefill_s,
            decode_ns / 1e9 AS decode_s,
            CASE WHEN ttft_ns IS NOT NULL AND prefill_ns IS NOT NULL
                THEN max(0, ttft_ns - coalesce(load_ns, 0) - prefill_ns) / 1e9 END AS unexplained_s,
            CASE WHEN prefill_ns > 0 AND prompt_tokens > coalesce(cached_tokens, 0)
                    AND (cached_tokens IS NOT NULL OR cache_state = 'cold')
                THEN (prompt_tokens - coalesce(cached_tokens, 0)) / (prefill_ns / 1e9) END AS prefill_tokens_per_s,
            CASE WHEN output_tokens >= 8 AND decode_ns >= 50000000
                THEN output_tokens / (decode_ns / 1e9) END AS decode_tokens_per_s,
            CASE WHEN output_tokens >= 8 AND last_piece_ns - ttft_ns >= 50000000
                THEN (output_tokens - 1) / ((last_piece_ns - ttft_ns) / 1e9) END AS user_tokens_per_s
        FROM calls
    """)
    db.execute(_cells_view())
    # What is there to compare? One line per run. Counted per run, so that one run of many stays quick.
    db.execute(f"""
        CREATE VIEW run_summary AS
        SELECT
            runs.id, substr(runs.id, -6) AS short_id, runs.started_utc, runs.command, runs.tag, runs.outcome,
            machines.cpu, machines.ram_bytes, machines.gpu, machines.gpu_memory_bytes,
            models.name AS model, models.quantization, models.digest,
            runs.server_kind, runs.server_version, runs.num_ctx, runs.num_ctx_loaded, runs.slots,
            (SELECT count(*) FROM calls WHERE run_id = runs.id) AS calls,
            {_outcome_counts()},
            (SELECT count(*) FROM calls WHERE run_id = runs.id AND cut IN ('suspected', 'proved')) AS cuts,
            {_run_median("ttft_s")} AS ttft_s,
            {_run_median("decode_tokens_per_s")} AS decode_tokens_per_s,
            runs.finished_utc
        FROM runs
        LEFT JOIN machines ON machines.id = runs.machine_id
        LEFT JOIN models ON models.id = runs.model_id
    """)


# SQLite has no median: rank the values that are there (NULL sorts last when descending) and average the middle two.
_CELL = "run_id, experiment, variant, size"
_CALL_FIGURES = (
    "ttft_s",
    "ttft_answer_s",
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "user_tokens_per_s",
    "prompt_tokens",
    "output_tokens",
)
_BURST_FIGURES = (*_CALL_FIGURES, "worst_ttft_s", "all_tokens_per_s")


def _ranks(names: tuple[str, ...], partition: str) -> str:
    return ", ".join(
        f"row_number() OVER (PARTITION BY {partition} ORDER BY {name} DESC) AS {name}_rank,"
        f" count({name}) OVER (PARTITION BY {partition}) AS {name}_n"
        for name in names
    )


def _middle(name: str, over: str = "") -> str:
    return f"avg(CASE WHEN {name}_rank IN (({name}_n + 1) / 2, ({name}_n + 2) / 2) THEN {name} END){over}"


def _named(figure: str, word: str) -> str:
    """`ttft_s` and `min` → `ttft_min_s`: the unit stays last."""
    for unit in ("_tokens_per_s", "_tokens", "_s"):
        if figure.endswith(unit):
            return f"{figure.removesuffix(unit)}_{word}{unit}"
    raise ValueError(figure)


def _cells_view() -> str:
    """What did each cell of a bench run come to?

    A burst is all users of one repeat, elsewhere a single call. Of a burst made again after a stop the later rows
    count, half a burst does not. Figures are of its ok calls that did not reload the model; a cell's figures are
    medians over its bursts. Windows split by run stand where GROUP BY would: SQLite hands `WHERE run_id = …` down
    through them, so that one run out of a million calls is read through the index.
    """
    in_cell = f" OVER (PARTITION BY {_CELL})"
    in_burst = f" OVER (PARTITION BY {_CELL}, burst)"
    figures = ", ".join(f"CASE WHEN good THEN {name} END AS {name}" for name in _CALL_FIGURES)
    burst_medians = ", ".join(f"{_middle(name, in_burst)} AS {name}" for name in _CALL_FIGURES)
    cell_figures = ", ".join(
        f"{_middle(name, in_cell)} AS {name}, min({name}){in_cell} AS {_named(name, 'min')},"
        f" max({name}){in_cell} AS {_named(name, 'max')}"
        for name in _BURST_FIGURES
    )
    return f"""
        CREATE VIEW cells AS
        WITH finished AS (
            SELECT *,
                CASE experiment WHEN 'users' THEN coalesce(repeat, 0) ELSE id END AS burst,
                outcome = 'ok' AND instr(',' || coalesce(flags, '') || ',', ',reloaded,') = 0 AS good
            FROM call_rates WHERE purpose = 'measured' AND outcome <> 'cancelled'
        ), measured AS (
            SELECT *, row_number() OVER (PARTITION BY {_CELL}, burst, user ORDER BY id DESC) AS age FROM finished
        ), figures AS (
            SELECT {_CELL}, id, burst, good, outcome <> 'ok' AS bad, cut IN ('suspected', 'proved') AS cut, recalled,
                CASE WHEN good THEN coalesce(connect_s, 0) + last_piece_s END AS last_piece_s, {figures}
            FROM measured WHERE age = 1
        ), ranked AS (
            SELECT *, {_ranks(_CALL_FIGURES, f"{_CELL}, burst")} FROM figures
        ), bursts AS (
            SELECT {_CELL}, burst, row_number() OVER (PARTITION BY {_CELL}, burst ORDER BY id) AS place,
                sum(good){in_burst} AS good, sum(bad){in_burst} AS failed, count(*){in_burst} AS calls,
                sum(cut){in_burst} AS cuts, sum(recalled){in_burst} AS recalled, count(recalled){in_burst} AS asked,
                max(ttft_s){in_burst} AS worst_ttft_s,
                sum(output_tokens){in_burst} / nullif(max(last_piece_s){in_burst}, 0) AS all_tokens_per_s,
                {burst_medians}
            FROM ranked
        ), ranked_bursts AS (
            SELECT *, row_number() OVER (PARTITION BY {_CELL} ORDER BY burst) AS cell_place,
                {_ranks(_BURST_FIGURES, _CELL)}
            FROM bursts WHERE place = 1 AND (experiment <> 'users' OR calls >= size)
        ), shown AS (
            SELECT {_CELL}, cell_place, sum(good > 0){in_cell} AS n, sum(calls){in_cell} AS calls,
                sum(failed){in_cell} AS failed, sum(calls - failed - good){in_cell} AS reloaded,
                sum(cuts){in_cell} AS cuts, sum(recalled){in_cell} AS recalled, sum(asked){in_cell} AS asked,
                {cell_figures}
            FROM ranked_bursts
        )
        SELECT {_CELL}, n, calls, failed, reloaded, cuts, recalled, asked,
            {", ".join(f"{name}, {_named(name, 'min')}, {_named(name, 'max')}" for name in _BURST_FIGURES)}
        FROM shown WHERE cell_place = 1
    """


def _outcome_counts() -> str:
    return ", ".join(
        f"(SELECT count(*) FROM calls WHERE run_id = runs.id AND outcome = '{outcome}') AS {outcome}"
        for outcome in ("ok", "error", "timeout", "cancelled", "incomplete")
    )


def _run_median(name: str) -> str:
    return f"""(
        SELECT {_middle(name)} FROM (
            SELECT {name}, {_ranks((name,), "run_id")} FROM call_rates
            WHERE run_id = runs.id AND outcome = 'ok' AND purpose IN ('answer', 'measured')
        )
    )"""
