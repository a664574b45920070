"""The prompts of samples: those of the recipe, or the beginning of the validation text."""

import json
from pathlib import Path

import pytest

from lmtool.recipe.load import load
from lmtool.training.data import MAX_PROMPT_CHARACTERS, make_prompt_from_beginning
from tests.support.training import MemoryStore, Work, after

TEXTS = {
    "prose": ("The old sailor went home before the storm came, and nobody saw him again.", "The old sailor went home"),
    "long words": (
        "Donaudampfschifffahrtsgesellschaftskapitän und so weiter, immer weiter",
        "Donaudampfschifffahrtsge",
    ),
    "a name": ("katherine", "kat"),
    "two letters": ("Al", "A"),
    "spaces": ("  a b c d e f  ", "a b"),
    "code": ("def f(x):\n    return x + 1\n\n\nclass A:\n    pass\n", "def f(x):"),
    "a script": ("雨が降っています。傘を持って行きましょう。", "雨が降っていま"),
}


class Characters:
    """A tokenizer of code points."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))


def made(*documents: str, is_stream: bool = False) -> str:
    store = MemoryStore([[ord(character) for character in document] for document in documents])
    return make_prompt_from_beginning(store, Characters(), is_stream)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", TEXTS)
def test_the_beginning_of_a_document(text: str) -> None:
    document, expected = TEXTS[text]
    assert made(document, "another") == expected
    assert document.strip().startswith(expected)
    assert len(expected) <= MAX_PROMPT_CHARACTERS


def test_a_stream_begins_with_its_first_whole_line() -> None:
    assert made("ry much, sir.\nROMEO:\nWhat light is this that breaks?", is_stream=True).startswith("ROMEO:\nWhat")
    assert made("lf a line without an end, which goes on and on", is_stream=True) == "a line without"
    assert made("word", is_stream=True) == "wo"


def samples(run: Path) -> list[str]:
    path = run / "samples.jsonl"
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
def test_samples_begin_as_the_held_out_text(work: Work) -> None:
    short = ("evaluation.sample_tokens=3", "checkpoint.keep_last=9")
    work.pretrain("evaluation.prompts=null", *short, name="whole")
    (prompt,) = set(samples(work.run("whole")))
    assert prompt
    assert prompt in work.text.read_text()
    recipe = load(work.run("whole") / "recipe.yaml").recipe
    assert recipe.evaluation.prompts is None, "another text has another beginning"
    # the same when resumed
    work.pretrain("evaluation.prompts=null", *short, stop=after(6))
    work.resume()
    assert (work.run() / "samples.jsonl").read_text() == (work.run("whole") / "samples.jsonl").read_text()
    work.pretrain("evaluation.prompts=[]", name="none")
    assert samples(work.run("none")) == []
    work.pretrain("evaluation.prompts=[a cat, the]", *short, "training.steps=4", name="own")
    assert samples(work.run("own")) == ["a cat", "the"]


ENCODER = "model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 16}"


def test_models_that_do_not_continue_texts_write_none(work: Work) -> None:
    work.pretrain("evaluation.prompts=null", ENCODER, "objective.kind=masked", "training.steps=4")
    assert samples(work.run()) == []
