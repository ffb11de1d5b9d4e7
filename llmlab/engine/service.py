"""The service: takes an order, borrows the model, waits for a slot, and writes the answer."""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from llmlab.engine.answer import End, Question, answer, render, tokenize
from llmlab.engine.card import Card
from llmlab.engine.desk import Busy, Desk
from llmlab.engine.form import Cost, Form, OllamaForm
from llmlab.engine.link import Broken, Link, Refused
from llmlab.engine.order import Order
from llmlab.engine.refusal import BUSY, Refusal
from llmlab.engine.reply import Reply
from llmlab.engine.runner import Runner
from llmlab.errors import EngineError


class Service:
    """One model at one desk."""

    def __init__(self, card: Card, desk: Desk) -> None:
        self.card = card
        self.desk = desk

    async def take(self, reply: Reply, order: Order) -> None:
        """Answer an order: Refusal before the first piece, an error line after it."""
        if order.question is None:
            await self.load(reply, order)
            return
        try:
            cost = await self.cook(reply, order, order.question)
        except Refusal as refusal:
            if not reply.streaming:
                raise
            await reply.stream(order.form.broken(refusal), order.form.kind)
            await reply.finish()
            return
        if order.stream:
            await reply.stream(order.form.done(cost), order.form.kind)
            await reply.finish()
        else:
            await reply.json(order.form.whole(cost), kind=order.form.whole_kind)

    async def cook(self, reply: Reply, order: Order, question: Question) -> Cost:
        """The whole answer, its pieces sent as they come where the order wants a stream; what it cost."""
        started_ns = time.perf_counter_ns()
        async with self.lent(order.n_ctx, order.keep_alive_s) as runner:
            load_ns = max(1000, time.perf_counter_ns() - started_ns)
            async with runner.slots:
                question = await continued(runner.link, question, order.context)
                async with aclosing(answer(runner, question)) as items:
                    async for item in items:
                        if isinstance(item, End):
                            cost = Cost(item, time.perf_counter_ns() - started_ns, load_ns)
                            break
                        line = order.form.piece(item)
                        if order.stream:
                            await reply.stream(line, order.form.kind)
            if order.context is not None:
                await add_context(runner.link, question, order.form)
        return cost

    async def load(self, reply: Reply, order: Order) -> None:
        """A request without a prompt loads the model, or unloads it where it is to be kept for no time."""
        form = order.form
        assert isinstance(form, OllamaForm)
        if order.keep_alive_s == 0:
            await self.desk.dismiss()
            await reply.json(form.nothing("unload"))
            return
        async with self.lent(order.n_ctx, order.keep_alive_s):
            await reply.json(form.nothing("load"))

    @asynccontextmanager
    async def lent(self, n_ctx: int, keep_alive_s: float | None) -> AsyncIterator[Runner]:
        try:
            async with self.desk.lend(n_ctx, keep_alive_s) as runner:
                yield runner
        except Busy:
            raise BUSY from None
        except EngineError as error:
            raise Refusal(500, error.what) from error


async def continued(link: Link, question: Question, context: list[int] | None) -> Question:
    """The question after an earlier answer's ids, as one prompt; the question itself where there are none."""
    if not context:
        return question
    try:
        before = (await link.ask("/detokenize", {"tokens": context}))["content"]
        prompt = before + await render(link, question, question.messages)
    except (Refused, Broken) as error:
        raise Refusal(400, "context cannot be read") from error
    return replace(question, messages=(), prompt=prompt)


async def add_context(link: Link, question: Question, form: Form) -> None:
    """Generate ends with the ids of the prompt and the answer."""
    assert isinstance(form, OllamaForm)
    try:
        prompt = question.prompt
        if prompt is None:
            prompt = await render(link, question, question.messages)
        form.context = await tokenize(link, prompt + form.text)
    except (Refused, Broken):
        form.context = None
