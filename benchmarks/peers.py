"""How truly do whole load generators report times? guidellm and aiperf, where they are installed.

Each tool runs as its own program, with no model hub and no network, and asks the mock server (`mock.py`) once for every
stream, all of them at once. What it writes of each request into its own export is held against the server's truth:

- TTFT error: the TTFT that the tool exports for the request − (first token written − request read). The request is
  found by its prompt: guidellm exports the request's body, aiperf the prompt of every conversation.
- gap error: aiperf exports the gap of every two chunks, and each one is compared. guidellm exports one mean a request,
  which is compared with the true mean of that stream: milder, since what comes late and early cancels out.
- CPU (`cpu_s`) is that of the whole program, all its processes: start-up dwarfs the tokens, so none is given per token.
- burst (`burst_ms`): from the first request that the server read to the last. A tool that staggers them has it easier.

Each gets half of the cores as processes that send requests, since the mock server needs the rest. On a small machine
guidellm's default of 10 reports worse times; aiperf's default is about this.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from mock import MODEL, last_word  # noqa: UP026

HERE = Path(__file__).parent
TIMEOUT_S = 300
# How long guidellm has to hand the requests to its processes, before all of them are due.
HAND_OUT_S = 2.0


class Failed(Exception):
    """The tool did not do what it was asked; one line says why."""


@dataclass(frozen=True)
class Request:
    """What a tool says of one request; `gaps_ms` are those of every two tokens, or one mean of the stream."""

    ttft_ms: float
    gaps_ms: list[float]
    tokens: int


def guidellm_command(program: str, url: str, streams: int, folder: Path) -> list[str]:
    """Replay of a trace whose requests are all due at one time: the other profiles send while they still hand out."""
    write_prompts(folder, streams, relative_timestamp=HAND_OUT_S)
    command = [program, "run", "--backend", f"kind=openai_http,target={url},model={MODEL}"]
    command += ["--profile", "kind=replay", "--constraint", f"kind=max_requests,count={streams}", "--disable-console"]
    command += ["--data", f"kind=json_file,path={folder}/prompts.jsonl"]
    return [*command, "--output", f"kind=json,path={folder}/report.json"]


def guidellm_requests(folder: Path) -> dict[str, Request]:
    report = json.loads((folder / "report.json").read_text())
    requests = {}
    for row in report["benchmarks"][0]["requests"]["successful"]:
        name = last_word(json.loads(row["request_args"])["body"])
        tokens = row["info"]["timings"]["token_iterations"]
        if tokens > 1:
            requests[name] = Request(row["time_to_first_token_ms"], [row["inter_token_latency_ms"]], tokens)
    return requests


def aiperf_command(program: str, url: str, streams: int, folder: Path) -> list[str]:
    write_prompts(folder, streams)
    write_tokenizer(folder / "tokenizer")
    command = [program, "profile", "--model", MODEL, "--url", url, "--endpoint-type", "chat", "--streaming"]
    command += ["--concurrency", str(streams), "--request-count", str(streams), "--workers-max", str(processes())]
    command += ["--input-file", str(folder / "prompts.jsonl"), "--custom-dataset-type", "single_turn"]
    command += ["--dataset-sampling-strategy", "sequential", "--artifact-dir", str(folder / "report")]
    command += ["--tokenizer", str(folder / "tokenizer"), "--use-server-token-count"]
    return [*command, "--no-gpu-telemetry", "--no-server-metrics", "--ui", "none"]


def aiperf_requests(folder: Path) -> dict[str, Request]:
    inputs = json.loads((folder / "report/inputs.json").read_text())["data"]
    names = {row["session_id"]: last_word(row["payloads"][0]) for row in inputs}
    requests = {}
    for line in (folder / "report/profile_export.jsonl").read_text().splitlines():
        row = json.loads(line)
        metrics = row["metrics"]
        if "time_to_first_token" in metrics and "inter_chunk_latency" in metrics:
            gaps_ms = metrics["inter_chunk_latency"]["value"]
            name = names[row["metadata"]["conversation_id"]]
            requests[name] = Request(metrics["time_to_first_token"]["value"], gaps_ms, len(gaps_ms) + 1)
    return requests


PEERS = {"guidellm": (guidellm_command, guidellm_requests), "aiperf": (aiperf_command, aiperf_requests)}


def processes() -> int:
    return max(1, (os.cpu_count() or 2) // 2)


def write_prompts(folder: Path, streams: int, **more: float) -> None:
    rows = [{"text": f"Say s{number}", **more} for number in range(streams)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tokenizer(folder: Path) -> None:
    """The least that loads as a tokenizer: every word is unknown. The server's own counts are what counts."""
    folder.mkdir()
    model = {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    absent = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    (folder / "tokenizer.json").write_text(json.dumps({**tokenizer, **absent}))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def environment(name: str, folder: Path) -> dict[str, str]:
    """Caches and temporary files go into `folder`; the hub is out of reach."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    env |= dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "HF_HOME"), str(folder))
    env |= {"HF_HUB_DISABLE_TELEMETRY": "1", "DO_NOT_TRACK": "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    # At its default of 0.1 s, guidellm 0.8.1 often leaves the last request of a burst out of its export.
    env |= {"GUIDELLM__MAX_WORKER_PROCESSES": str(processes()), "GUIDELLM__MP_POLL_INTERVAL": "1"}
    if name == "aiperf":
        # Told that it is offline, aiperf takes the tokenizer's folder for a name on the hub and does not find it.
        return env | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    return env | {"HF_HUB_OFFLINE": "1"}


def run_program(command: list[str], env: dict[str, str], folder: Path) -> str:
    """What it said. Its own session, so that no process of it outlives it, whatever happens."""
    name = Path(command[0]).name
    said = folder / "said.txt"
    with said.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, env=env, start_new_session=True
        )
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{name} did not end within {TIMEOUT_S} s: {complaint(said)}") from None
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code != 0:
        raise Failed(f"{name} failed with exit code {code}: {complaint(said)}")
    return said.read_text(errors="replace")


def complaint(said: Path) -> str:
    """The last line that speaks of an error, else the last line with a word in it; a box wraps its lines."""
    lines = [line.strip() for line in said.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if any(map(str.isalnum, line))] or ["it said nothing"]
    return ([line for line in lines if "error" in line.lower() and line[0] not in "╭│"] or lines)[-1]


def children_cpu_s() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def measure_peer(command: str, url: str, streams: int, tokens: int) -> dict[str, Any]:
    """One burst of `streams` requests of `tokens` tokens by the tool `command` against the mock server at `url`.

    Times in milliseconds, a value for each request or gap; `cpu_s` in seconds. A tool that is missing
    ends the program with one line; Failed where it fails or reports no request.
    """
    found, name = shutil.which(command), Path(command).name
    if name not in PEERS:
        raise SystemExit(f"{name} is not a tool that can be measured; these can: {', '.join(PEERS)}")
    if found is None:
        raise SystemExit(f"{command} is not installed; install {name} or give the path of its program")
    program, (build, read) = str(Path(found).absolute()), PEERS[name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place)
        env = environment(name, folder)
        version = run_program([program, "--version"], env, folder).split()[-1]
        take_truth(url)  # what others asked before is forgotten
        before_s = children_cpu_s()
        run_program(build(program, url, streams, folder), env, folder)
        cpu_s = children_cpu_s() - before_s
        try:
            requests = read(folder)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise Failed(f"the export of {name} {version} cannot be read: {error!r}") from None
    if not requests:
        raise Failed(f"{name} {version} reported no request that succeeded")
    received = sum(request.tokens for request in requests.values())
    row = {"client": f"{name} {version}", "streams": streams, **errors(requests, take_truth(url))}
    return row | {"cpu_s": round(cpu_s, 2), "tokens": received, "lost": streams * tokens - received}


def take_truth(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/truth") as response:
        return dict(json.load(response))


def errors(requests: dict[str, Request], truth: dict[str, Any]) -> dict[str, Any]:
    """How wrong the tool is; which gaps a stream with lost tokens misses is unknown, so that its gaps are left out."""
    ttft, gaps = [], []
    for name, request in requests.items():
        written = truth[name]["written_ns"]
        ttft.append(request.ttft_ms - (written[0] - truth[name]["received_ns"]) / 1e6)
        true = [(after - before) / 1e6 for before, after in pairwise(written)]
        if len(request.gaps_ms) == 1:
            gaps.append(abs(request.gaps_ms[0] - sum(true) / len(true)))
        elif len(request.gaps_ms) == len(true):
            gaps += [abs(seen - real) for seen, real in zip(request.gaps_ms, true, strict=True)]
    if not gaps:
        raise Failed("no stream arrived whole")
    read_ns = [truth[name]["received_ns"] for name in requests]
    burst_ms = round((max(read_ns) - min(read_ns)) / 1e6, 1)
    return {"ttft_error_ms": ttft, "gap_error_ms": gaps, "burst_ms": burst_ms}
