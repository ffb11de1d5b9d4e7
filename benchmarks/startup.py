"""How long each command takes to start, beside bare Python: CPU and wall time of whole processes, medians.

    python benchmarks/startup.py [--rounds 7]

`chat to its prompt` runs in a pseudo-terminal against the fake server and ends when the prompt's bottom line is there.
The last line of the output is the same as one JSON object.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pexpect

from llmlab.fake import FakeServer, Figures

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "llmlab --help": ["-m", "llmlab", "--help"],
    "llmlab chat --help": ["-m", "llmlab", "chat", "--help"],
    "llmlab runs": ["-m", "llmlab", "runs"],
    "llmlab report": ["-m", "llmlab", "report"],
}
WHERE = "\x1b[6n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder, FakeServer(Figures(), process=True) as fake:
        env = {**os.environ, "LLMLAB_DB": str(Path(folder) / "lab.db"), "XDG_DATA_HOME": folder}
        found = {name: middle([command(words, env) for _ in range(rounds)]) for name, words in COMMANDS.items()}
        found["llmlab chat to its prompt"] = middle([prompt(fake.url, env) for _ in range(rounds)])
    print(f"{'':<28}{'CPU':>8}{'wall':>8}")
    for name, (cpu_s, wall_s) in found.items():
        print(f"{name:<28}{cpu_s:>6.2f} s{wall_s:>6.2f} s")
    print(json.dumps({name: {"cpu_s": cpu_s, "wall_s": wall_s} for name, (cpu_s, wall_s) in found.items()}))


def middle(samples: list[tuple[float, float]]) -> tuple[float, float]:
    cpu, wall = zip(*samples, strict=True)
    return statistics.median(cpu), statistics.median(wall)


def command(words: list[str], env: dict[str, str]) -> tuple[float, float]:
    """CPU and wall seconds of one run of Python with `words`."""
    cpu, start = children_cpu_s(), time.perf_counter()
    subprocess.run([sys.executable, *words], env=env, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    return children_cpu_s() - cpu, time.perf_counter() - start


def prompt(url: str, env: dict[str, str]) -> tuple[float, float]:
    """CPU and wall seconds of `llmlab chat` until it can be typed to; the CPU of leaving it is in there."""
    cpu, start = children_cpu_s(), time.perf_counter()
    child = pexpect.spawn(sys.executable, ["-m", "llmlab", "chat", "--host", url], env=env, encoding="utf-8")
    child.delaybeforesend = None
    while child.expect_exact(["next: ", WHERE]):
        child.send("\x1b[1;1R")
    wall_s = time.perf_counter() - start
    child.send("\x04")
    child.expect(pexpect.EOF)
    child.close()
    return children_cpu_s() - cpu, wall_s


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
