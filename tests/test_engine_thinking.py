"""A model that thinks: the default weights with a template that starts every answer with a thought."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from engine_captures import user
from engine_fixture import cache

from llmlab.engine import default_weights
from llmlab.engine.body import Body
from llmlab.engine.card import Card
from llmlab.engine.desk import Desk
from llmlab.engine.gguf import read_header
from llmlab.engine.order import chat_order, generate_order, openai_order
from llmlab.engine.progress import silent
from llmlab.engine.reply import Reply
from llmlab.engine.runner import Runner
from llmlab.engine.service import Service

pytestmark = pytest.mark.engine

TEMPLATE = """
{%- for message in messages %}
    {%- if message.role == 'assistant' and (loop.last or message.reasoning_content) %}
        {{- '<|im_start|>assistant\n<think>\n' + (message.reasoning_content or '') }}
        {{- '\n</think>\n\n' + message.content }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {{- '<think>\n\n</think>\n\n' if enable_thinking is false else '<think>\n' }}
{%- endif %}
"""


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    path = default_weights(cache(), silent)
    card = Card(path, read_header(path), "thinker:latest", 256, TEMPLATE)

    async def load(n_ctx: int) -> Runner:
        return await Runner.start(gguf=str(path), n_ctx=n_ctx, slots=1, threads=1, template=TEMPLATE)

    desk = Desk(load, max_queue=2)
    yield Service(card, desk)
    await desk.close()


async def answered(service: Service, take: Any, body: dict[str, Any]) -> list[Any]:
    """What goes over the wire, line by line as JSON."""
    sent: list[bytes] = []

    async def send(event: dict[str, Any]) -> None:
        sent.append(event.get("body", b""))

    fields = {"model": "thinker", "options": {"num_predict": 3, "temperature": 0}, "max_tokens": 3, **body}
    await service.take(Reply(send), take(Body(fields), service.card))
    lines = [line.removeprefix("data: ") for line in b"".join(sent).decode().split("\n")]
    return [json.loads(line) for line in lines if line and line != "[DONE]"]


async def test_thoughts_come_apart_from_the_answer(service: Service) -> None:
    assert service.card.capabilities == ["completion", "thinking"]
    messages = {"messages": [user("hi")]}
    for think in ({"think": True}, {"think": "high"}, {}):
        *pieces, done = await answered(service, chat_order, {**messages, **think})
        assert pieces and all(piece["message"]["thinking"] for piece in pieces)
        assert not any(piece["message"]["content"] for piece in pieces)
        assert (done["done_reason"], done["eval_count"]) == ("length", 3)
    (whole,) = await answered(service, chat_order, {**messages, "think": False, "stream": False})
    assert whole["message"]["content"] and "thinking" not in whole["message"]
    (generated,) = await answered(service, generate_order, {"prompt": "hi", "stream": False})
    assert generated["thinking"] and not generated["response"]
    (openai,) = await answered(service, openai_order, messages)
    assert openai["choices"][0]["message"]["reasoning"] and not openai["choices"][0]["message"]["content"]
    chunk, *_ = await answered(service, openai_order, {**messages, "stream": True})
    assert chunk["choices"][0]["delta"]["reasoning"]
    (plain,) = await answered(service, openai_order, {**messages, "reasoning_effort": "none"})
    assert plain["choices"][0]["message"]["content"]
