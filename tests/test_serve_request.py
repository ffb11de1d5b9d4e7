"""What may be asked of /chat: each body that cannot be used is a 422 that names the field."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.serve.chat_request import ChatRequest, read_chat_request
from llmlab.serve.problem import Problem
from tests.serving import asking, serving

USER = '{"role":"user","content":"x"}'
BAD = {
    '{"model":"demo:1b","message":[{"role":"user","content":"hi"}]}': "message",
    '{"model":"demo:1b","messages":[]}': "messages",
    '{"model":"demo:1b","messages":[{"role":"robot","content":"x"}]}': "messages.0.role",
    '{"model":"demo:1b","messages":[{"role":"user","content":"\\ud83d"}]}': "messages.0.content",
    f'{{"model":"","messages":[{USER}]}}': "model",
    f'{{"model":"demo:1b","messages":[{USER}],"options":{{"temperature":NaN}}}}': "NaN",
    f'{{"messages":[{USER}],"options":{{"temperature":1e999}}}}': "options.temperature",
    f'{{"messages":[{USER}],"options":{{"num_ctx":5}}}}': "num_ctx",
    "[1,2]": "body",
    "": "body",
    "null": "body",
    '"x"': "body",
    '{"message":"x"': "body",
    "{}": "message",
    '{"message":""}': "message",
    '{"massage":"x"}': "massage",
    f'{{"message":"x","messages":[{USER}]}}': "message",
    '{"message":"x","num_ctx":0}': "num_ctx",
    '{"message":"x","num_ctx":"4096"}': "num_ctx",
    '{"message":"x","num_ctx":1.5}': "num_ctx",
    '{"message":"x","num_ctx":99999999999999999999}': "num_ctx",
    '{"message":"x","pinned":"yes"}': "pinned",
    '{"message":"x","session":""}': "session",
    '{"message":"x","session":"a b"}': "session",
    '{"message":"x","think":"hard"}': "think",
    '{"message":"x","\\ud83d":1}': "body",
    '{"messages":[{"role":"assistant","content":"x"}]}': "messages",
    '{"messages":[{"role":"user","content":""}]}': "messages",
    '{"messages":[{"role":"user"}]}': "messages.0.content",
    '{"messages":[{"role":"user","content":["x"]}]}': "messages.0.content",
    '{"messages":[{"role":"user","content":"x","image":"y"}]}': "messages.0.image",
    '{"messages":["x"]}': "messages.0",
    '{"message":"x","message":7}': "message",
    "[" * 100_000: "body",
    '{"options":' * 3_000: "body",
}


@pytest.mark.parametrize("raw", BAD)
async def test_it_is_a_422_that_names_the_field_and_nothing_is_sent(raw, fake):
    async with serving(fake.url) as service, asking(service) as client:
        response = await client.post("/chat", content=raw, headers={"content-type": "application/json"})
        assert response.status_code == 422
        body = response.json()
        assert BAD[raw] in body["error"]
        assert body["detail"][0]["loc"][0] == "body"
        assert fake.served == []


def test_what_can_be_used_is_read():
    request = read_chat_request(
        json.dumps(
            {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "é🙂\u2028", "pinned": True}]}
        ).encode()
    )
    assert isinstance(request, ChatRequest)
    assert request.question.content == "é🙂\u2028"
    assert request.question.pinned
    assert [m.role for m in request.history or ()] == ["system"]


async def test_ten_thousand_messages_are_answered(fake):
    messages = [{"role": "user" if i % 2 else "assistant", "content": f"line {i}"} for i in range(10_000)]
    async with serving(fake.url) as service, asking(service) as client:
        response = await client.post("/chat", json={"messages": messages, "num_predict": 2})
        assert response.status_code == 200
        assert "event: stats" in response.text


KEYS = [*ChatRequest.model_fields, "role", "content", "x"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["user", "\ud83d", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_read_or_refused_in_words_that_can_be_sent(raw):
    found = read_chat_request(raw)
    if isinstance(found, Problem):
        assert found.status == 422
        json.dumps([found.text, *found.detail], ensure_ascii=False).encode()
    else:
        assert found.question.content
