"""Selection: the runs that the words of the command line mean."""

from collections import Counter
from collections.abc import Sequence

from llmlab.errors import UsageError
from llmlab.report.side import Side, plain
from llmlab.run import Run
from llmlab.store import Store

MEASURING = ("measured", "anchor")


def select(store: Store, words: Sequence[str]) -> list[Side]:
    """The bench runs to report, in the order of the words; none where the store has none.

    No word means the two newest, the older first. A tag means its newest run; said k times, or alone, its k (two)
    newest, the older first. UsageError for a word that is no tag and no id of a bench run.
    """
    runs = _named(store, words) if words else store.runs("bench", limit=2)[::-1]
    labels = _labels(runs)
    return [
        Side(
            run=run,
            calls=[call for call in store.calls(run.id) if call.purpose in MEASURING],
            model=store.model(run.model_id),
            machine=store.machine(run.machine_id),
            label=label,
        )
        for run, label in zip(runs, labels, strict=True)
    ]


def _named(store: Store, words: Sequence[str]) -> list[Run]:
    wanted = Counter(words)
    if len(words) == 1:
        wanted[words[0]] = 2
    waiting = {word: _runs_of(store, word, count) for word, count in wanted.items()}
    order = list(words) * 2 if len(words) == 1 else words
    found = [waiting[word].pop(0) for word in order if waiting[word]]
    return list({run.id: run for run in found}.values())


def _runs_of(store: Store, word: str, count: int) -> list[Run]:
    """The newest `count` bench runs with the tag `word`, oldest first, or the one that it is the id of."""
    if tagged := store.runs("bench", tag=word, limit=count):
        return tagged[::-1]
    run = store.find_run(word, "bench")
    if run.command != "bench":
        raise UsageError(f"run {run.id[-6:]} is a {run.command} run and has nothing to compare", "See: llmlab runs")
    return [run]


def _labels(runs: Sequence[Run]) -> list[str]:
    """The tag, the end of the id where there is none, both where runs share a tag."""
    tags = Counter(run.tag for run in runs)
    return [_label(run, tags[run.tag] > 1) for run in runs]


def _label(run: Run, shared: bool) -> str:
    if not run.tag:
        return run.id[-6:]
    return f"{plain(run.tag)} {run.id[-6:]}" if shared else plain(run.tag)
