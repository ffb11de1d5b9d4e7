"""Canned queries: questions to the whole file that a person has of it."""

_MODEL = "LEFT JOIN models ON models.id = c.model_id"

QUERIES: dict[str, dict[str, str]] = {
    "slowest_first_tokens": {
        "title": "Slowest first tokens",
        "description": "The calls that waited longest for their first token, and what the server says of the wait.",
        "sql": """
WITH slowest AS (
  SELECT id, model_id FROM calls WHERE ttft_ns IS NOT NULL ORDER BY ttft_ns DESC LIMIT 100
)
SELECT round(r.ttft_s, 3) AS ttft_s, round(r.load_s, 3) AS load_s, round(r.prefill_s, 3) AS prefill_s,
  round(r.unexplained_s, 3) AS unexplained_s, r.in_flight, r.prompt_tokens, r.cached_tokens, models.name AS model,
  r.num_ctx, r.purpose, r.experiment, r.size, r.started_utc, r.run_id
FROM slowest JOIN call_rates AS r USING (id) LEFT JOIN models ON models.id = slowest.model_id
ORDER BY r.ttft_s DESC""",
    },
    "calls_that_were_cut": {
        "title": "Calls that were cut",
        "description": "Calls of which the server read only a part, proved or suspected, and how that is known.",
        "sql": f"""
SELECT c.started_utc, c.cut, c.cut_evidence, c.prompt_tokens_estimate AS sent_tokens_estimate,
  c.prompt_tokens AS read_tokens, coalesce(c.num_ctx_loaded, c.num_ctx) AS window_tokens, c.messages_sent, c.purpose,
  c.recalled, models.name AS model, c.run_id
FROM calls AS c {_MODEL}
WHERE c.cut IN ('proved', 'suspected')
ORDER BY c.started_utc DESC LIMIT 500""",
    },
    "estimate_error_by_model": {
        "title": "Estimate error by model",
        "description": "How far the estimate, before calibration, is from what the server counts; uncut calls only.",
        "sql": f"""
SELECT models.name AS model, count(*) AS calls,
  round(avg(c.prompt_tokens * 1.0 / c.prompt_tokens_estimate), 3) AS counted_per_estimated,
  round(min(c.prompt_tokens * 1.0 / c.prompt_tokens_estimate), 3) AS lowest,
  round(max(c.prompt_tokens * 1.0 / c.prompt_tokens_estimate), 3) AS highest,
  round(avg(abs(c.prompt_tokens_estimate - c.prompt_tokens) * 100.0 / c.prompt_tokens), 1) AS mean_error_percent
FROM calls AS c {_MODEL}
WHERE c.outcome = 'ok' AND coalesce(c.cut, 'no') = 'no' AND c.prompt_tokens > 0 AND c.prompt_tokens_estimate > 0
GROUP BY c.model_id ORDER BY calls DESC""",
    },
    "drift_inside_a_run": {
        "title": "Drift inside a run",
        "description": "The anchor calls of a run in their order: the same small cold call, ÷ the first one. "
        "Give the id of a run or its end; without one it is the newest bench run.",
        "sql": """
WITH chosen AS (
  SELECT id FROM runs
  WHERE CASE WHEN coalesce(:run, '') = '' THEN command = 'bench' ELSE id LIKE '%' || upper(trim(:run)) END
  ORDER BY started_utc DESC LIMIT 1
), anchors AS (
  SELECT r.run_id, r.seq, r.started_utc, r.ttft_s - coalesce(r.load_s, 0) AS wait_s,
    coalesce(r.decode_tokens_per_s, r.user_tokens_per_s) AS decode_tokens_per_s
  FROM call_rates AS r
  WHERE r.run_id = (SELECT id FROM chosen) AND r.purpose = 'anchor' AND r.outcome = 'ok'
)
SELECT seq, started_utc, round(wait_s, 3) AS wait_s,
  round(wait_s / first_value(wait_s) OVER (ORDER BY seq), 3) AS wait_to_first,
  round(decode_tokens_per_s, 1) AS decode_tokens_per_s,
  round(decode_tokens_per_s / first_value(decode_tokens_per_s) OVER (ORDER BY seq), 3) AS decode_to_first, run_id
FROM anchors ORDER BY seq""",
    },
    "bench_against_everyday_chats": {
        "title": "Bench against everyday chats",
        "description": "Does everyday use feel as the bench says? Means of ok calls by model and prompt length, of the "
        "100,000 newest answers.",
        "sql": """
WITH compared AS (
  SELECT 1 AS bench, * FROM calls WHERE purpose = 'measured' AND experiment = 'prompt_length'
  UNION ALL
  SELECT 0, * FROM (SELECT * FROM calls WHERE purpose = 'answer' ORDER BY rowid DESC LIMIT 100000)
), sorted AS (
  SELECT bench, model_id, ttft_ns, decode_ns, output_tokens,
    CASE WHEN prompt_tokens < 256 THEN 0 WHEN prompt_tokens < 1024 THEN 256 WHEN prompt_tokens < 2048 THEN 1024
      WHEN prompt_tokens < 4096 THEN 2048 ELSE 4096 END AS prompt_tokens_from
  FROM compared WHERE outcome = 'ok' AND prompt_tokens > 0
)
SELECT models.name AS model, prompt_tokens_from, sum(bench) AS bench_calls, sum(NOT bench) AS chat_calls,
  round(avg(CASE WHEN bench THEN ttft_ns END) / 1e9, 3) AS bench_ttft_s,
  round(avg(CASE WHEN NOT bench THEN ttft_ns END) / 1e9, 3) AS chat_ttft_s,
  round(sum(CASE WHEN bench AND decode_ns > 0 THEN output_tokens END) * 1e9
    / sum(CASE WHEN bench AND output_tokens > 0 THEN decode_ns END), 1) AS bench_decode_tokens_per_s,
  round(sum(CASE WHEN NOT bench AND decode_ns > 0 THEN output_tokens END) * 1e9
    / sum(CASE WHEN NOT bench AND output_tokens > 0 THEN decode_ns END), 1) AS chat_decode_tokens_per_s
FROM sorted LEFT JOIN models ON models.id = sorted.model_id
GROUP BY sorted.model_id, prompt_tokens_from
ORDER BY model, prompt_tokens_from""",
    },
}
