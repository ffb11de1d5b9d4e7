"""A fake server in a process of its own: `python -m llmlab.fake '{"slots": 2}'` says its address and serves."""

import json
import sys

from llmlab.fake import FakeServer, Figures


def main() -> None:
    """Run until standard input closes, so that nothing is left behind when the parent is killed."""
    figures = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    figures["faults"] = {int(number): word for number, word in figures.get("faults", {}).items()}
    with FakeServer(Figures(**figures)) as fake:
        print(fake.url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
