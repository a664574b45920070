"""The official client against every endpoint: answers are those of `lmtool generate` and `lmtool chat`."""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from lmtool.apps.search.entries import Entry
from lmtool.apps.search.index import Index, add_or_replace_texts
from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.data.stdin import temporary_table_file
from lmtool.data.survey import no_progress
from lmtool.evaluation.embedding import embed
from lmtool.generation.chat import Conversation
from lmtool.generation.params import SamplingFilters, SamplingParams
from lmtool.runs.load import load_run
from lmtool.serving.server import ServerConfig
from lmtool.tasks.predict import predict_table_lazily
from tests.serving.harness import Served, served

PROMPT = "Who saw the"
PENALTIES = {"frequency_penalty": 1.5, "presence_penalty": -0.5}


def test_the_model_is_listed(client: Any, server: Served, name: str) -> None:
    assert name == server.generator.loaded.run_path.name
    assert client.models.retrieve(name).id == name
    assert client.models.retrieve(name).model_extra["embeds"] == "mean"
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("another")
    assert refused.value.code == "model_not_found"


def test_completions_are_those_of_generate(client: Any, server: Served, name: str) -> None:
    prompts = [PROMPT, "yes", PROMPT]
    ids = [[*server.generator.loaded.prompt_format.make_prompt(prompt).tokens] for prompt in prompts]
    settings = {"seed": 3, "temperature": 1.2, "top_p": 0.9}
    for prompt in (prompts, ids):
        answer = client.completions.create(model=name, prompt=prompt, n=2, max_tokens=8, **settings)
        assert [choice.index for choice in answer.choices] == list(range(6))
        expected = server.generator.complete(prompts, SamplingParams(**settings, max_new_tokens=8), n=2)  # type: ignore[arg-type]
        assert [choice.text for choice in answer.choices] == expected
        assert answer.usage.prompt_tokens == sum(map(len, ids))


@pytest.mark.parametrize(
    ("asked", "settings", "stop"),
    [
        ({"stop": "a", "logit_bias": {"70": 4, "71": -100}}, {"logit_bias": (((70,), 4.0), ((71,), -100.0))}, ("a",)),
        ({"stop": ["zz", "e"]}, {}, ("zz", "e")),
        (PENALTIES, PENALTIES, ()),
    ],
)
def test_fields_of_a_completion_are_settings_of_generate(
    client: Any, server: Served, asked: Any, settings: Any, stop: tuple[str, ...]
) -> None:
    plain = {"model": None, "prompt": PROMPT, "max_tokens": 60, "seed": 1}
    text = client.completions.create(**plain, **asked).choices[0].text
    expected = SamplingParams(seed=1, temperature=1.0, max_new_tokens=60, **settings)
    assert [text] == server.generator.complete(PROMPT, expected, stop=stop)
    assert text != client.completions.create(**plain).choices[0].text


def test_a_stream_is_the_same_text(client: Any, name: str) -> None:
    asked = {"model": name, "prompt": PROMPT, "max_tokens": 20, "seed": 9, "n": 2, "echo": True}
    whole = client.completions.create(**asked)
    texts, usage, reasons = ["", ""], None, {}
    for event in client.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in event.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason
        usage = event.usage or usage
    assert texts == [choice.text for choice in whole.choices]
    assert all(text.startswith(PROMPT) for text in texts)
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usage == whole.usage


def test_log_probabilities_are_those_of_the_model(client: Any, server: Served, name: str) -> None:
    asked = {"model": name, "prompt": PROMPT, "echo": True, "logprobs": 3, "seed": 2}
    answer = client.completions.create(**asked, max_tokens=5, temperature=0.5)
    found = answer.choices[0].logprobs
    loaded = load_run(str(server.generator.loaded.run_path), CPU)
    [completion] = server.generator.completions(PROMPT, SamplingParams(seed=2, temperature=0.5, max_new_tokens=5))
    prompt = loaded.prompt_format.make_prompt(PROMPT).tokens
    ids = torch.tensor([[*prompt, *completion.tokens]])
    with torch.inference_mode():
        logprobs = loaded.model.logits(loaded.model(Batch(ids)).hidden_BTD)[0].log_softmax(-1)
    expected = logprobs[:-1].gather(-1, ids[0, 1:, None])[:, 0].tolist()
    assert found.token_logprobs[0] is None
    assert found.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    for own, best in zip(found.top_logprobs[1:], logprobs.topk(3).values, strict=False):
        assert sorted(own.values()) == pytest.approx(sorted(best.tolist()), abs=1e-4)
    only = client.completions.create(**asked, max_tokens=0).choices[0]
    assert only.text == PROMPT
    assert only.logprobs.token_logprobs == found.token_logprobs[: len(prompt)]
    # one more token is one more, also where it ends the text: lm-eval leaves out the last one
    end = {str(loaded.tokenizer.eos_id): 100}
    ended = client.completions.create(**asked, max_tokens=1, logit_bias=end).choices[0]
    assert (ended.text, ended.finish_reason) == (PROMPT, "stop")
    assert ended.logprobs.token_logprobs[:-1] == pytest.approx(found.token_logprobs[: len(prompt)], abs=1e-4)


def test_an_answer_is_that_of_chat(client: Any, server: Served, name: str) -> None:
    """Whole and streamed."""
    messages: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "Who saw the ball?"}]
    conversation = Conversation(server.generator, SamplingParams(seed=4, temperature=1.0, max_new_tokens=12))
    expected = "".join(conversation.stream_reply(messages))
    asked = {"model": name, "messages": messages, "seed": 4, "max_completion_tokens": 12, "logprobs": True}
    choice = client.chat.completions.create(**asked, top_logprobs=2).choices[0]
    events = client.chat.completions.create(**asked, top_logprobs=2, stream=True)
    choices = [event.choices[0] for event in events]
    assert choice.message.content == "".join(one.delta.content or "" for one in choices) == expected
    assert choices[0].delta.role == "assistant"
    tokens = [token for one in choices if one.logprobs for token in one.logprobs.content or ()]
    assert [one.token for one in tokens] == [one.token for one in choice.logprobs.content] != []
    for token in tokens:
        assert len(token.top_logprobs) == 2
        assert token.logprob <= max(one.logprob for one in token.top_logprobs) + 1e-6


def test_embeddings_are_those_of_embed(client: Any, server: Served, name: str) -> None:
    texts = ["Tom saw it", "yes", "yes it is"] * 5
    expected = [one.vectors[0] for one in embed(server.generator.loaded, texts, -1, "own")]
    found = client.embeddings.create(model=name, input=texts)  # which asks for base64
    plain = client.embeddings.create(model=name, input=texts, encoding_format="float")
    for one, other, vector in zip(found.data, plain.data, expected, strict=True):
        assert one.embedding == pytest.approx(vector.tolist(), abs=1e-5)
        assert other.embedding == pytest.approx(vector.tolist(), abs=1e-5)


def test_a_search_finds_what_lmtool_search_does(talker: str, server: Served, tmp_path: Path) -> None:
    loaded = server.generator.loaded
    texts = [Entry(f"a:{i}", "a", text) for i, text in enumerate(["Tom saw it", "yes", "no", "yes it is", "the cat"])]
    add_or_replace_texts(tmp_path / "i", loaded, texts, no_progress)
    expected = Index(tmp_path / "i", loaded).search(["yes it", "cat"], 3)
    with served(talker, ServerConfig(index=Index(tmp_path / "i"))) as searching, searching.http() as http:
        answer = http.post("/search", json={"input": ["yes it", "cat"], "k": 3}).json()["data"]
        assert [one["index"] for one in answer] == [0, 1]
        for one, hits in zip(answer, expected, strict=True):
            assert [tuple(hit.values())[:3] for hit in one["hits"]] == [hit[:3] for hit in hits]
            assert [hit["score"] for hit in one["hits"]] == pytest.approx([hit.score for hit in hits], abs=1e-5)
        assert len(http.post("/search", json={"input": "yes"}).json()["data"][0]["hits"]) == 5
        wrong: list[dict[str, Any]] = [{"k": 0}, {"k": 1001}, {"index": "/etc"}, {"input": []}]
        for one in wrong:
            assert http.post("/search", json={"input": "a", **one}).status_code == 400
    with server.http() as http:
        assert http.post("/search", json={"input": "yes"}).status_code == 404


def test_classes_are_those_of_predict(classifier: str) -> None:
    texts = ["the cat ran home", "the cat sat"] * 6
    with served(classifier) as server, server.http() as client:
        answer = client.post("/classify", json={"input": texts})
        assert answer.status_code == 200
        with temporary_table_file(None, texts, ("text",), False) as table:
            expected = [cells for _, cells in predict_table_lazily(server.generator.loaded, table).rows]
        found = [(one["label"], *one["probabilities"].values()) for one in answer.json()["data"]]
        assert [one[0] for one in found] == [cells[0] for cells in expected]
        for one, cells in zip(found, expected, strict=True):
            assert one[1:] == pytest.approx([float(str(p)) for p in cells[1:]], abs=1e-5)
            assert math.isclose(sum(one[1:]), 1, abs_tol=1e-4)
        assert client.post("/classify", json={"input": {"text": "the cat"}}).status_code == 200
        assert client.post("/classify", json={"input": {" Text": "the cat"}}).status_code == 200
        refused = client.post("/classify", json={"input": {"other": "the cat"}})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingFilters)])
def test_every_sampling_filter_is_a_field_of_requests(server: Served, client: Any, name: str) -> None:
    value: float = 1 if name == "top_k" else 0.9 if name == "min_p" else 0.01
    given: dict[str, Any] = {"seed": 5, "temperature": 1.5} | {name: value}
    answer = client.completions.create(model=None, prompt=PROMPT, max_tokens=20, extra_body=given)
    [completion] = server.generator.completions(PROMPT, SamplingParams(**given, max_new_tokens=20))
    assert answer.choices[0].text == completion.text
    assert [completion.text] != server.generator.complete(
        PROMPT, SamplingParams(seed=5, temperature=1.5, max_new_tokens=20)
    )
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=None, prompt=PROMPT, extra_body={name: -1})
    assert refused.value.param == name


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"prompt": []}, "prompt"),
        ({"stop": [""]}, "stop"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"n": 65}, "n"),
        ({"prompt": ["a"] * 64, "n": 2}, "n"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": "a" * 5000}, "prompt"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"extra_body": {"web_search_options": {}}}, "web_search_options"),
        ({"extra_body": {"run": "/etc/passwd"}}, "run"),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(client: Any, asked: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{"model": None, "prompt": "a", **asked})
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


def test_fields_on_which_no_answer_depends_change_none(client: Any) -> None:
    asked: Any = {"model": None, "seed": 3, "max_tokens": 9, "messages": [{"role": "user", "content": "the cat"}]}
    plain = client.chat.completions.create(**asked)
    ignored: dict[str, Any] = {
        "user": "u",
        "safety_identifier": "s",
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "store": True,
    }
    ignored |= {"metadata": {"a": "b"}, "parallel_tool_calls": True, "modalities": ["text"], "verbosity": "medium"}
    ignored |= {"prediction": {"type": "content", "content": "the dog"}, "frequency_penalty": 0}
    nulls = {"functions": None, "web_search_options": None}
    more = client.chat.completions.create(**asked, **ignored, extra_body=nulls)
    assert more.choices[0].message == plain.choices[0].message
    told = {"role": "assistant", "content": "a cat", "refusal": None, "audio": None, "function_call": None}
    messages = [*asked["messages"], told, {"role": "user", "content": "why?"}]
    assert client.chat.completions.create(**asked | {"messages": messages}).choices


CHANGING = {"modalities": ["audio"], "verbosity": "low", "reasoning_effort": "high", "functions": []}


@pytest.mark.parametrize("name", CHANGING)
def test_fields_that_would_change_an_answer_are_refused_by_name(client: Any, name: str) -> None:
    asked = {"model": None, "messages": [{"role": "user", "content": "the cat"}], "extra_body": {name: CHANGING[name]}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked)
    assert refused.value.param == name
