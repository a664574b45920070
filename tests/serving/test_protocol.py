"""Bodies of requests: what is wrong in one is said in plain words, by the field."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from lmtool.serving.errors import BadRequest
from lmtool.serving.protocol import ChatBody, ClassifyBody, CompletionBody, EmbeddingBody, parse_body


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (ChatBody, {}, "messages: this field is required"),
        (ChatBody, {"messages": []}, "messages: it is empty"),
        (EmbeddingBody, {"input": []}, "input: it is empty"),
        (ClassifyBody, {"input": []}, "input: it is empty"),
        (CompletionBody, {"prompt": []}, "prompt: it is empty"),
        (CompletionBody, {"prompt": "a", "stop": [""]}, "stop: it is empty"),
        (CompletionBody, {"prompt": "a", "text": "b"}, "text: this field is not offered here"),
        (CompletionBody, {"prompt": "a", "max_tokens": -1}, "max_tokens: it should be greater than or equal to"),
    ],
)
def test_a_field_at_fault_is_named_in_plain_words(kind: type[BaseModel], body: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_body(kind, json.dumps(body).encode())
    assert str(caught.value).startswith(message)
    assert caught.value.body["error"]["param"] == message.partition(":")[0]
