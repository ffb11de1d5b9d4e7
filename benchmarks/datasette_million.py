"""How long Datasette's pages with llmlab's plugin take over a database with a million calls.

The database is the one of `report_million.py`, built once and kept. `datasette FILE` is started as people start it;
each page is asked for `--rounds` times, and once before. The table of calls is Datasette's own page, whose search for
facets to suggest takes most of its time; `llmlab browse` leaves that out.

    python benchmarks/datasette_million.py [--calls 1000000] [--rounds 5] [--db FILE]
"""

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from report_million import build

from llmlab.datasette_plugin.queries import QUERIES
from llmlab.store import Store

TARGET_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--db", type=Path, default=Path(tempfile.gettempdir()) / "llmlab-report-million.db")
    options = parser.parse_args()
    if not options.db.exists():
        build(options.db, options.calls)
    with Store.read(options.db) as store:
        (calls, runs), *_ = store.db.execute("select (select count(*) from calls), (select count(*) from runs)")
        bench = [run.id for run in store.runs("bench", limit=2)]
    print(f"{calls:,} calls in {runs:,} runs, {options.db.stat().st_size / 2**20:.0f} MiB; target {TARGET_S} s")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "datasette", str(options.db), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        base = f"http://127.0.0.1:{port}/{options.db.stem}"
        wait_for(server, port)
        pages = {
            "start page": "/-/runs",
            "start page, all runs": "/-/runs?all=1",
            "compare page": f"/-/compare?run={bench[0]}&run={bench[1]}",
            "page of a run": f"/-/run/{bench[0]}",
            **{f"query {name}": f"/{name}" for name in QUERIES},
            "table of calls": "/calls",
        }
        found: dict[str, dict[str, float]] = {}
        for name, path in pages.items():
            first_s, *rest_s = [seconds(base + path) for _ in range(options.rounds + 1)]
            median_s, worst_s = statistics.median(rest_s), max(rest_s)
            found[name] = {"first_s": first_s, "median_s": median_s, "worst_s": worst_s}
            print(f"{name:38} first {first_s:.2f} s, median {median_s:.2f} s, worst {worst_s:.2f} s")
        print(json.dumps(found))
    finally:
        server.terminate()
        server.wait()


def wait_for(server: subprocess.Popen[bytes], port: int) -> None:
    """Until the server listens; it has not opened a page yet then."""
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.05)
    sys.exit("datasette did not start")


def seconds(address: str) -> float:
    """How long a page takes until its last byte. HTTPError: it was refused, as after Datasette's time limit."""
    began = time.perf_counter()
    with urllib.request.urlopen(address) as response:
        response.read()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
