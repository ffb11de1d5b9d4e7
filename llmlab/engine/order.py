"""An order: a request for an answer, understood and checked against what the model can do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmlab.engine import options as option
from llmlab.engine.answer import Question
from llmlab.engine.body import Body
from llmlab.engine.card import Card
from llmlab.engine.form import Form, OllamaForm, OpenAIForm
from llmlab.engine.refusal import Refusal


@dataclass(frozen=True)
class Order:
    """What to ask (None: only load the model), in which window, and how to write the answer.

    `context` are the ids of an earlier answer to go on from; None where the answer does not end with ids of its own.
    """

    question: Question | None
    form: Form
    n_ctx: int
    keep_alive_s: float | None
    stream: bool
    context: list[int] | None = None


def chat_order(body: Body, card: Card) -> Order:
    messages = body.messages()
    return make(body, card, OllamaForm(body.model(), chat=True), {"messages": messages} if messages else None)


def generate_order(body: Body, card: Card) -> Order:
    prompt, system = body.get("prompt", str, ""), body.get("system", str, "")
    form = OllamaForm(body.model(), chat=False)
    if body.get("suffix", str):
        raise Refusal(400, f"{card.name} does not support insert")
    if body.get("images", list):
        raise Refusal(400, "this model does not support images")
    if not prompt:
        return make(body, card, form, None)
    if body.get("raw", bool, False):
        return make(body, card, form, {"prompt": prompt})
    first = [{"role": "system", "content": system}] if system else []
    context = body.get("context", list, [])
    if not all(isinstance(token, int) for token in context):
        raise Refusal(400, "context must be a list of numbers")
    return make(body, card, form, {"messages": [*first, {"role": "user", "content": prompt}]}, context=context)


def openai_order(given: Body, card: Card) -> Order:
    messages = given.messages()
    if not messages:
        raise Refusal(400, "[] is too short - 'messages'")
    usage = given.get("stream_options", dict, {}).get("include_usage") is True
    body = from_openai(given)
    return make(body, card, OpenAIForm(given.model(), usage=usage), {"messages": messages}, stream=False)


def make(
    body: Body,
    card: Card,
    form: Form,
    what: Mapping[str, Any] | None,
    *,
    stream: bool = True,
    context: list[int] | None = None,
) -> Order:
    options = option.checked(body.fields.get("options"))
    question = (
        None
        if what is None
        else Question(
            **what,
            options=options,
            extra=extra(body, card),
            truncate=body.get("truncate", bool, True),
            shift=body.get("shift", bool, True),
        )
    )
    return Order(
        question=question,
        form=form,
        n_ctx=card.window(options.get("num_ctx")),
        keep_alive_s=option.keep_alive_s(body.fields.get("keep_alive")),
        stream=body.get("stream", bool, stream),
        context=context,
    )


def extra(body: Body, card: Card) -> dict[str, Any]:
    """Format and thinking in llama.cpp's words; what the engine cannot do is refused."""
    found = format_of(body.fields.get("format"))
    if body.get("tools", list):
        raise Refusal(400, f"{card.name} does not support tools")
    think = body.fields.get("think")
    if think is not None and not isinstance(think, bool | str):
        raise Refusal(400, "think must be true, false or a level")
    if think and not card.thinks:
        raise Refusal(400, f'"{card.name}" does not support thinking')
    if card.thinks:
        effort = {"reasoning_effort": think} if isinstance(think, str) else {}
        found["chat_template_kwargs"] = {"enable_thinking": think is None or bool(think), **effort}
    return found


def format_of(given: Any) -> dict[str, Any]:
    if not given:
        return {}
    if given == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(given, dict):
        return {"response_format": {"type": "json_schema", "json_schema": {"schema": given}}}
    raise Refusal(400, 'format must be "json" or a JSON schema')


SAME_OPTIONS = ("seed", "temperature", "top_p", "frequency_penalty", "presence_penalty")
# OpenAI's own defaults, which Ollama takes over on this wire.
OPENAI_DEFAULTS = {"temperature": 1.0, "top_p": 1.0}


def from_openai(body: Body) -> Body:
    """The fields of the OpenAI wire in Ollama's names."""
    fields = body.fields
    options = {**OPENAI_DEFAULTS, **{k: fields[k] for k in SAME_OPTIONS if fields.get(k) is not None}}
    longest = fields.get("max_completion_tokens") or fields.get("max_tokens")
    if longest is not None:
        options["num_predict"] = longest
    if stop := fields.get("stop"):
        options["stop"] = [stop] if isinstance(stop, str) else stop
    effort = fields.get("reasoning_effort")
    kept: dict[str, Any] = {k: fields[k] for k in ("stream", "tools") if k in fields}
    think: dict[str, Any] = {"think": effort != "none"} if effort else {}
    return Body({**kept, **think, "options": options, "format": response_format(fields.get("response_format"))})


def response_format(given: Any) -> Any:
    if not isinstance(given, dict) or given.get("type") == "text":
        return None
    schema = given.get("json_schema")
    return schema.get("schema") if isinstance(schema, dict) else "json"
