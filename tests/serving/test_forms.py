"""Answers of a form over HTTP: by the official client, and by the usual names of other servers."""

import asyncio
import json
import re
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel

from lmtool.generation import constrained
from lmtool.generation.forms import TextForm
from lmtool.generation.params import SamplingParams
from lmtool.serving.protocol import MAX_FORM_CHARACTERS
from tests.serving.harness import Served, served
from tests.support.training import Work

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"who": {"enum": ["Tom", "Anna"]}, "balls": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["who", "balls"],
    "additionalProperties": False,
}
ASKED: list[Any] = [{"role": "user", "content": "Who saw the ball?"}]
FORM = {"type": "json_schema", "json_schema": {"name": "sight", "strict": True, "schema": SCHEMA}}


def test_a_schema_is_kept_whole_and_streamed(client: Any, name: str) -> None:
    asked: dict[str, Any] = {"model": name, "messages": ASKED, "response_format": FORM, "seed": 3}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "stop"
    jsonschema.validate(json.loads(whole.message.content), SCHEMA)
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].finish_reason == "stop"


def test_a_model_of_pydantic_is_parsed_by_the_client(client: Any, name: str) -> None:
    class Sight(BaseModel, extra="forbid"):
        who: str
        seen: bool

    asked = {"model": name, "messages": ASKED, "seed": 1, "extra_body": {"guided_complete": True}, "max_tokens": 60}
    parsed = client.chat.completions.parse(**asked, response_format=Sight)
    assert isinstance(parsed.choices[0].message.parsed, Sight)
    any_object = client.chat.completions.create(**asked, response_format={"type": "json_object"})
    assert isinstance(json.loads(any_object.choices[0].message.content), dict)


GUIDED: list[tuple[dict[str, Any], str]] = [
    ({"guided_choice": [" Tom saw it", " no"]}, " Tom saw it| no"),
    ({"guided_regex": "[ab]{3}c"}, "[ab]{3}c"),
    ({"guided_json": SCHEMA}, r'\{"who": "(Tom|Anna)", "balls": \d+\}'),
    ({"guided_json": json.dumps(SCHEMA)}, r'\{"who": "(Tom|Anna)", "balls": \d+\}'),
    ({"guided_grammar": 'start: "a" start | "b"'}, "a*b"),
]


@pytest.mark.parametrize(("guided", "pattern"), GUIDED, ids=[next(iter(guided)) for guided, _ in GUIDED])
def test_the_usual_names_of_other_servers(client: Any, name: str, guided: Any, pattern: str) -> None:
    more = {**guided, "guided_complete": True}
    answer = client.completions.create(model=name, prompt="Who saw", max_tokens=60, extra_body=more).choices[0]
    assert re.fullmatch(pattern, answer.text)
    assert answer.finish_reason == "stop"


def test_a_completion_is_that_of_generate(client: Any, name: str, server: Served) -> None:
    form = TextForm("json-schema", json.dumps(SCHEMA))
    params = SamplingParams(temperature=1.0, seed=5, max_new_tokens=60, form=form)
    asked = {"model": name, "prompt": "Who saw", "seed": 5, "max_tokens": 60}
    answer = client.completions.create(**asked, extra_body={"guided_json": SCHEMA})
    assert [answer.choices[0].text] == server.generator.complete("Who saw", params)


def test_probabilities_are_those_of_the_model(client: Any, name: str) -> None:
    answer = client.chat.completions.create(
        model=name, messages=ASKED, seed=1, logprobs=True, extra_body={"guided_choice": ["no"]}
    ).choices[0]
    content = answer.logprobs.content
    assert "".join(one.token for one in content) == "no"
    assert sum(one.logprob for one in content) < -1  # the model is random: it would seldom say so
    assert [one.model_extra["constrained_logprob"] for one in content] == [0.0] * len(content)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {"enum": ["x" * 100] * (MAX_FORM_CHARACTERS // 100)}}, "guided_json"),
    ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json"),
    ({"guided_choice": []}, "guided_choice"),
    ({"guided_choice": ["a"], "guided_regex": "b"}, "guided_choice"),
    ({"guided_choice": ["a"], "stop": "b"}, "stop"),
    ({"guided_complete": True}, "guided_complete"),
    ({"guided_regex": "a{90}", "guided_complete": True}, ""),
]


@pytest.mark.parametrize(("guided", "param"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_not_enforced_is_refused_by_name(server: Served, guided: Any, param: str) -> None:
    with server.http() as client:
        answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 9, **guided})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == (param or None)


@pytest.mark.parametrize("form", [{"type": "json_schema"}, {"type": "text", "json_schema": {}}, {"type": "xml"}])
def test_formats_that_are_none_are_refused(client: Any, form: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=None, messages=ASKED, response_format=form)
    assert refused.value.param == "response_format"


def test_what_no_token_spells_is_said(folder: Work) -> None:
    """By a model of characters, among them no digits."""
    folder.pretrain(name="letters")
    what, asked = "no token of this model continues it", {"prompt": "a cat", "guided_regex": "the cat [0-9]+"}
    with served(str(folder.run("letters"))) as letters, letters.http() as client:
        answer = client.post("/v1/completions", json=asked)
        assert answer.status_code == 400
        assert what in answer.json()["error"]["message"]
        assert what in client.post("/v1/completions", json={**asked, "stream": True}).text


def test_a_form_that_fails_ends_its_own_answer_only(server: Served, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does whose grammar takes too much."""
    plus = constrained.FormState.with_token

    def failing(self: constrained.FormState, token: int) -> constrained.FormState:
        if self.form.source == "[xy]+":
            raise self.form.make_error("ParserTooComplex")
        return plus(self, token)

    monkeypatch.setattr(constrained.FormState, "with_token", failing)

    async def together() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.address, timeout=60) as client:
            asked = [{"guided_regex": "[ab]{30}"}, {"guided_regex": "[xy]+"}, {}]
            return await asyncio.gather(
                *(client.post("/v1/completions", json={"prompt": "Who", "max_tokens": 40, **one}) for one in asked)
            )

    kept, failed, free = asyncio.run(together())
    assert re.fullmatch("[ab]{30}", kept.json()["choices"][0]["text"])
    assert failed.status_code == 400
    assert "ParserTooComplex" in failed.json()["error"]["message"]
    assert free.status_code == 200
