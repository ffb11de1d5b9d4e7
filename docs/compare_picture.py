"""Make the README's picture of two runs compared in Datasette.

python docs/compare_picture.py --db llmlab.db laptop desktop
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from llmlab.store import Store

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
WIDTH, HEIGHT = 1000, 580
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs=2, help="tags or run ids")
    parser.add_argument("--db", type=Path, required=True)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    args = parser.parse_args()
    compared(args.db, args.runs, args.chromium, HERE / "img" / "compare.png")


def compared(db: Path, words: list[str], executable: str, picture: Path) -> None:
    """The compare page of two runs, from its charts of users on."""
    with Store.read(db) as store:
        ids = [store.find_run(word, "bench").id for word in words]
    command = [sys.executable, "-m", "llmlab", "browse", "--no-open", "--db", str(db)]
    with tempfile.TemporaryFile("w+") as said, subprocess.Popen(command, stderr=said, stdout=said) as server:
        try:
            address = spoken_address(said)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=executable, args=FLAGS)
                page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
                page.goto(f"{address.removesuffix('/runs')}/compare?run={ids[0]}&run={ids[1]}")
                page.locator("h2", has_text="Several users").evaluate("heading => heading.scrollIntoView()")
                page.screenshot(path=picture)
                browser.close()
        finally:
            server.terminate()


def spoken_address(said: "tempfile._TemporaryFileWrapper[str]") -> str:
    """What `llmlab browse` says its address is."""
    for _ in range(100):
        said.seek(0)
        found = re.search(r"http://\S+", said.read())
        if found:
            return found[0]
        time.sleep(0.1)
    raise SystemExit("llmlab browse did not start")


if __name__ == "__main__":
    main()
