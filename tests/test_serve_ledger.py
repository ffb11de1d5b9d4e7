"""What the server knows of its models: asked once, refreshed in the background, calibrated by what was read."""

from dataclasses import replace

from llmlab.call import Call
from llmlab.model import Model, ServerFacts
from llmlab.serve.ledger import FRESH_S, Known, Ledger
from llmlab.serve.metrics import Metrics
from llmlab.settings import Server
from llmlab.store import Store
from llmlab.target import Target


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Talkative:
    """A client that says of each model which time it was asked."""

    asked = 0

    async def model(self, name: str) -> Model:
        self.asked += 1
        return Model(name=name, digest=str(self.asked))


async def test_a_model_is_asked_for_once_and_again_in_the_background(tmp_path):
    clock, client = Clock(), Talkative()
    with Store.open(tmp_path / "lab.db") as store:
        target = Target(client, Server("http://x"), ServerFacts(kind="ollama"), "ollama", Model(name="a"))
        ledger = Ledger(target, store, "run", Metrics(int, int, int), clock=clock)
        assert (await ledger.known("b")).model.digest == "1"
        assert (await ledger.known("b")).model.digest == "1"
        clock.now = FRESH_S + 1
        assert (await ledger.known("b")).model.digest == "1"
        await ledger.settle()
        assert (await ledger.known("b")).model.digest == "2"
        assert client.asked == 2


def test_the_ratio_moves_only_where_it_matters():
    known = Known(Model(name="a"), [], 0.0)
    call = Call(outcome="ok", cut="no", prompt_tokens_estimate=1000, prompt_tokens=1300)
    known.learn(call)
    assert known.ratio == 1.3
    known.learn(replace(call, prompt_tokens=1350))
    assert known.ratio == 1.3
    for _ in range(5):
        known.learn(replace(call, prompt_tokens=2000))
    assert known.ratio == 2.0
    known.learn(replace(call, cut="suspected", prompt_tokens=100))
    assert known.ratio == 2.0
