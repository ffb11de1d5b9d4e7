"""The worker: a child process that holds one model in one window, as a llama.cpp server on a loopback port.

It reads one line of JSON (a `Plan`) from standard input, answers with one line of JSON on standard output (`address`,
or `error` where the model cannot be loaded), and lives until standard input closes or a signal ends it: llama.cpp's
own shutdown can hang.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

from llmlab.engine.child import take_stdout

# Small batches: a cancelled prompt stops at the next batch, and reading is no slower (0.7 s instead of 4.5 s to stop).
BATCH_TOKENS = 128
PROMPT_CACHE_MIB = 512
ERRORS_ONLY = 1
# How long a thread spins before it sleeps: with two threads on two cores that others use too, 60 tokens/s instead of 5;
# on idle cores about 10 % fewer.
SPINS = "200"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to load: `n_ctx` tokens for each of `slots`; `template` replaces the model's own where given."""

    gguf: str
    n_ctx: int
    slots: int
    key: str
    threads: int | None = None
    template: str | None = None

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


def main() -> None:
    plan = Plan(**json.loads(sys.stdin.buffer.readline()))
    out = take_stdout()
    os.environ["GGML_NO_BACKTRACE"] = "1"  # an abort would start a debugger
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    try:
        import xllamacpp

        server = xllamacpp.Server(parameters(xllamacpp, plan))
    except (ImportError, RuntimeError) as error:
        say(out, {"error": str(error), "loaded": "xllamacpp" in sys.modules})
        os._exit(1)
    say(out, {"address": server.listening_address, "gpu": has_gpu(xllamacpp)})
    while sys.stdin.buffer.read(4096):
        continue
    os._exit(0)


def say(out: int, message: dict[str, Any]) -> None:
    os.write(out, json.dumps(message).encode() + b"\n")


def parameters(xllamacpp: Any, plan: Plan) -> Any:
    """What is told to llama.cpp of the plan, and why it is not left to its defaults."""
    params = xllamacpp.CommonParams()
    params.model.path = plan.gguf
    params.n_parallel = plan.slots
    params.n_ctx = plan.n_ctx * plan.slots
    params.kv_unified = False  # one shared pool fails all users together once it is full
    params.fit_params = False  # would change the window to what it thinks fits
    params.n_batch = params.n_ubatch = BATCH_TOKENS
    params.ctx_shift = True  # answers go on past the window, as with Ollama
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [plan.key]
    params.cors_origins = "http://127.0.0.1"
    params.ui = False
    params.verbosity = ERRORS_ONLY
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = plan.threads or physical_cores()
    # Flash attention stays on, unlike Ollama's on a CPU: then an answer at temperature 0 does not depend on what was
    # cached. Without it the first tokens of a warm prompt differed.
    if plan.template is not None:
        params.chat_template = plan.template
    return params


def physical_cores() -> int:
    """Cores this process may use; two threads on one core only get in each other's way."""
    import psutil  # type: ignore[import-untyped]

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def has_gpu(xllamacpp: Any) -> bool:
    return any("GPU" in str(device.get("type", "")) for device in xllamacpp.get_device_info())


if __name__ == "__main__":
    main()
