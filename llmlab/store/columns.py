"""What each column means, with its unit: for the schema page, and for those who browse the file."""

_MACHINES = {
    "id": "random, made once on the machine: two machines of one type are two",
    "class": "the same for machines of one type: a hash of the facts",
    "os": "operating system",
    "os_version": "its version, as it calls itself",
    "arch": "processor architecture",
    "cpu": "processor model",
    "cores_physical": "processor cores",
    "cores_logical": "processor threads",
    "ram_bytes": "main memory, bytes",
    "gpu": "graphics processors; NULL: none found",
    "gpu_memory_bytes": "their own memory together, bytes; NULL where it is the system's",
}

_MODELS = {
    "id": "the same for one name and digest on every machine",
    "name": "as the server calls it",
    "digest": "identifies the weights; NULL: the server does not say",
    "family": "architecture family",
    "parameter_size": "parameters, as the server says (3.1B)",
    "quantization": "bits per weight, as the server says (Q4_K_M)",
    "context_length": "the longest window the model was made for, tokens",
    "size_bytes": "size on disk, bytes",
    "capabilities": "JSON list of words such as thinking, tools, vision; NULL: unknown",
}

_RUNS = {
    "id": "ULID; people type its last six characters",
    "command": "the llmlab command",
    "tag": "the name the user gave it",
    "machine_id": "where it ran",
    "model_id": "the model it used",
    "server_kind": "ollama, llmlab, llama-server, vllm, lmstudio or openai",
    "server_version": "as the server says",
    "num_ctx": "the window asked for, tokens",
    "num_ctx_loaded": "the window really loaded, tokens",
    "size_bytes": "the loaded model in memory, bytes",
    "size_vram_bytes": "the part of it in GPU memory, bytes; less than size_bytes: the rest runs on the CPU",
    "slots": "answers the server makes at once, as measured",
    "power": "mains or battery; NULL: unknown",
    "load_average": "one-minute load before the run ÷ logical cores",
    "seed": "for the prompts' varied prose",
    "options_json": "the options of the command",
    "plan_json": "the calls it meant to make, to resume from",
    "bench_version": "raised when prompts or method change: other versions do not compare",
    "llmlab_version": "of the program that wrote it",
    "started_utc": "start, UTC",
    "finished_utc": "end, UTC; NULL: it runs, or was killed",
    "outcome": "ok, failed or interrupted; NULL: it runs, or was killed",
    "findings_json": "drift, noise floor and findings of a bench run",
}

_CALLS = {
    "id": "ULID",
    "run_id": "the run it belongs to",
    "seq": "its place in the run",
    "model_id": "the model that answered",
    "num_ctx": "the window asked for, tokens; NULL: the server's API has no such option",
    "num_ctx_loaded": "the window really loaded, tokens",
    "purpose": "answer, measured, warmup, anchor, probe or summary",
    "experiment": "prompt_length, repeat_prompt, users or overflow",
    "variant": "the row within the experiment",
    "size": "the size within the experiment: prompt tokens, users or turns",
    "repeat": "which time this cell was measured; all users of one burst share it",
    "user": "which user of a burst",
    "started_utc": "start, UTC",
    "prompt_chars": "characters of all messages sent",
    "prompt_tokens_estimate": "our estimate of them before calibration, tokens",
    "messages_sent": "messages sent",
    "messages_pinned": "messages kept by the user's wish",
    "messages_dropped": "messages left out by the budget",
    "prompt_tokens": "the whole prompt with its template, as the server counts, tokens",
    "cached_tokens": "the part of it the server had in its cache, tokens; NULL: it does not say",
    "cache_state": "cold, warm or unknown: set by who built the prompt",
    "output_tokens": "as the server counts, tokens",
    "pieces": "pieces of the stream that were not empty; a piece is not a token",
    "connect_ns": "opening the connection, ns; NULL: it was open",
    "ttft_ns": "time to first token: request written → first piece of thinking or answer, ns",
    "ttft_answer_ns": "request written → first piece of the answer, ns",
    "last_piece_ns": "request written → last piece, ns",
    "stall_max_ns": "the longest gap between two pieces, ns",
    "total_ns": "request written → end, ns",
    "server_total_ns": "the whole call by the server's clock, ns",
    "load_ns": "loading the model, by the server's clock, ns",
    "prefill_ns": "reading the part of the prompt that was not cached, ns",
    "prefill_source": "server; client: TTFT − load, where the server timed only a part",
    "decode_ns": "writing the output, by the server's clock, ns",
    "in_flight": "other calls of ours under way when it started",
    "cut": "did the server silently lose a part of the prompt? no, suspected or proved; NULL: unknown",
    "cut_evidence": "how we know",
    "recalled": "overflow: was the code word in the answer? 1 or 0",
    "outcome": "ok, error, timeout, cancelled or incomplete (ended without saying done)",
    "done_reason": "why the answer ended: the server's word, or window_full",
    "http_status": "HTTP status",
    "error": "what went wrong, one line",
    "timing_source": "what stamped the bytes: socket (as they arrived) or reader (as they were read)",
    "flags": "words with commas: reloaded, short_answer, … unstorable_X: X was no number SQLite can hold",
    "prompt_hash": "SHA-256 of the messages sent, first 16 hex digits",
}

_TEXTS = {
    "call_id": "the call",
    "prompt_json": "the messages sent, JSON",
    "answer": "the answer",
}

_RATES = {
    "connect_s": "opening the connection, s; NULL: it was open",
    "ttft_s": "time to first token: request written → first piece of thinking or answer, s",
    "ttft_answer_s": "request written → first piece of the answer, s",
    "last_piece_s": "request written → last piece, s",
    "stall_max_s": "the longest gap between two pieces, s",
    "total_s": "request written → end, s",
    "load_s": "loading the model, s",
    "prefill_s": "reading the part of the prompt that was not cached, s",
    "decode_s": "writing the output, by the server's clock, s",
    "unexplained_s": "TTFT − load − prefill: waiting the server does not explain, s",
    "prefill_tokens_per_s": "(prompt − cached) tokens ÷ prefill; NULL unless cold or the cached count is known",
    "decode_tokens_per_s": "output tokens ÷ decode; NULL under 8 tokens or 50 ms",
    "user_tokens_per_s": "(output tokens − 1) ÷ (last piece − first piece); NULL under 8 tokens or 50 ms",
}

_CALL_RATES = {
    name: _RATES.get(name) or _CALLS[name]
    for name in (
        *("id", "run_id", "seq", "model_id", "purpose", "experiment", "variant", "size", "repeat", "user"),
        *("started_utc", "num_ctx", "outcome", "cut", "recalled", "cache_state", "flags"),
        *("prompt_tokens", "cached_tokens", "output_tokens", "in_flight"),
        *_RATES,
    )
}

_FIGURES = {
    "ttft_s": "time to first token, s",
    "ttft_answer_s": "time to the first piece of the answer, s",
    "prefill_tokens_per_s": "prefill speed, tokens/s",
    "decode_tokens_per_s": "decode speed, tokens/s",
    "user_tokens_per_s": "the speed a user sees, tokens/s",
    "prompt_tokens": "prompt tokens",
    "output_tokens": "output tokens",
    "worst_ttft_s": "time to first token of the burst's last user, s",
    "all_tokens_per_s": "total speed: output tokens of all users ÷ time until the last piece of the last, tokens/s",
}


def _cells() -> dict[str, str]:
    meanings = {
        "run_id": _CALLS["run_id"],
        "experiment": _CALLS["experiment"],
        "variant": _CALLS["variant"],
        "size": _CALLS["size"],
        "n": "bursts with a good call; a burst is all users of one repeat, elsewhere one call",
        "calls": "measured calls",
        "failed": "of them, not ok; never averaged in",
        "reloaded": "of them, ok but with the model loaded anew; not averaged in",
        "cuts": "of them, cut by the server (suspected or proved)",
        "recalled": "answers that held the code word",
        "asked": "answers looked through for it",
    }
    for name, meaning in _FIGURES.items():
        stem, unit = next(
            (name.removesuffix(end), end) for end in ("_tokens_per_s", "_tokens", "_s") if name.endswith(end)
        )
        meanings[name] = f"{meaning}: median over bursts of each burst's median"
        meanings[f"{stem}_min{unit}"] = f"{meaning}: smallest"
        meanings[f"{stem}_max{unit}"] = f"{meaning}: largest"
    for name in ("worst_ttft_s", "all_tokens_per_s"):
        meanings[name] = f"{_FIGURES[name]}: median over bursts"
    return meanings


_RUN_SUMMARY = {
    "id": _RUNS["id"],
    "short_id": "the last six characters of the id",
    **{name: _RUNS[name] for name in ("started_utc", "command", "tag", "outcome")},
    **{name: _MACHINES[name] for name in ("cpu", "ram_bytes", "gpu", "gpu_memory_bytes")},
    "model": _MODELS["name"],
    "quantization": _MODELS["quantization"],
    "digest": _MODELS["digest"],
    **{name: _RUNS[name] for name in ("server_kind", "server_version", "num_ctx", "num_ctx_loaded", "slots")},
    "calls": "calls of the run",
    "ok": "calls that ended well",
    "error": "calls the server refused or failed",
    "timeout": "calls that fell silent",
    "cancelled": "calls left early",
    "incomplete": "calls that ended without saying done",
    "cuts": "calls cut by the server (suspected or proved)",
    "ttft_s": "median time to first token of its ok answers and measured calls, s",
    "decode_tokens_per_s": "median decode speed of the same, tokens/s",
    "finished_utc": _RUNS["finished_utc"],
}

# Table or view → column → meaning, in the order of the columns.
MEANINGS: dict[str, dict[str, str]] = {
    "machines": _MACHINES,
    "models": _MODELS,
    "runs": _RUNS,
    "calls": _CALLS,
    "texts": _TEXTS,
    "call_rates": _CALL_RATES,
    "cells": _cells(),
    "run_summary": _RUN_SUMMARY,
}

# What question each table or view answers.
PURPOSES = {
    "machines": "Which computers measured?",
    "models": "Which weights answered?",
    "runs": "What was done, where, with which server and settings?",
    "calls": "What did each request cost, and what became of it? NULL is not reported, which is not 0.",
    "texts": "What was asked and answered? Empty unless `--keep-text` was given.",
    "call_rates": "How fast was each call? A rate that would mislead is NULL.",
    "cells": "What did each cell (run, experiment, variant, size) of a bench run come to?",
    "run_summary": "What is there to compare? One row per run.",
}
