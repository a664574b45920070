"""A training text: its description, inferred settings, the prompts of samples, and errors."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmtool.compute.device import CPU
from lmtool.compute.processes import World
from lmtool.model import SkipGramModel
from lmtool.recipe.load import Setting, load, parse_settings
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.load import build_model
from lmtool.training.data import MAX_PROMPT_CHARACTERS, TextData, make_prompt_from_beginning, tokenize_training_text
from tests.support.errors import refuses
from tests.support.training import MemoryStore, Work, after, no_report, words


def resolved(work: Work, *overrides: str, valid: Path | None = None) -> tuple[Recipe, TextData]:
    flags = [Setting("data.train", [str(work.text)], "TEXT")]
    if valid:
        flags.append(Setting("data.valid", [str(valid)], "--valid"))
    return tokenize_training_text(load(work.recipe, [*overrides, *flags]).recipe, None, World(), no_report)


def read(work: Work, *overrides: str, valid: Path | None = None) -> TextData:
    return resolved(work, *overrides, valid=valid)[1]


def test_what_is_said_of_a_text(work: Work) -> None:
    work.text.write_text("\n\n".join(["one two"] * 40) + "\n")
    # 36 documents with two special tokens each
    assert read(work).description_lines == ("text: 36 documents, 324 tokens; validation: 4 documents, 36 tokens",)
    fifth = read(work, "data.split=slice", "data.valid_fraction=0.2")
    (line,) = fifth.description_lines
    assert line.startswith("text: one text, ")
    assert "; validation: the last 20 % of the text, " in line
    valid = work.folder / "valid.txt"
    valid.write_text("one\n\ntwo\n")
    (line,) = read(work, valid=valid).description_lines
    assert line == f"text: 40 documents, 360 tokens; validation: {valid}, 10 tokens"


def test_the_recipe_of_a_text_says_what_only_the_text_could(work: Work) -> None:
    recipe, data = resolved(work)
    assert (recipe.data.split, recipe.data.documents) == ("document", "blank-line")
    assert recipe.model.vocab_size == data.prompt_format.tokenizer.vocab_size
    assert (data.prompt_format.documents, data.split, data.warnings) == (True, None, ())
    assert data.unit == "token"
    assert not data.is_measured
    assert read(work).fingerprint == data.fingerprint
    work.text.write_text(work.text.read_text() + "\n\nmore\n")
    assert read(work).fingerprint != data.fingerprint


def test_few_documents_may_hold_out_too_much(work: Work) -> None:
    files = [work.folder / name for name in ("long.txt", "short.txt")]
    for file, n in zip(files, (900, 300), strict=True):
        file.write_text(words(n, seed=n))
    both = [Setting("data.train", [*map(str, files)], "TEXT"), *parse_settings(["data.documents=whole"])]

    def told(*overrides: str) -> str:
        recipe = load(work.recipe, [*overrides, *both]).recipe
        return "".join(tokenize_training_text(recipe, None, World(), no_report)[1].warnings)

    shares = {told(f"seed={seed}").partition(" %")[0] for seed in range(8)}
    assert shares == {f"1 of 2 documents, with {share}" for share in (25, 75)}
    assert told("data.split=slice") == ""
    assert "held out" not in told(f"data.valid={files[1]}")


def test_skip_gram_is_told_how_often_each_word_comes(work: Work) -> None:
    work.text.write_text(words(400))
    model = ("model={kind: skipgram, d_model: 4, context: 16}", "objective.kind=skip-gram", "tokenizer.kind=word")
    recipe, data = resolved(work, *model, "data.split=slice")
    lm: Any = build_model(recipe, data.prompt_format.tokenizer, CPU)
    data.initialize_from_data_(lm)
    assert isinstance(lm, SkipGramModel)
    assert int(lm.counts_V.sum()) == int(data.description_lines[0].split(" tokens")[0].split()[-1])
    text = work.text.read_text()
    learned = text[: round(0.9 * len(text))].split()
    for word in ("cat", "mat", "naïve"):
        (number,) = data.prompt_format.tokenizer.encode(word)
        assert int(lm.counts_V[number]) == learned.count(word)


def test_a_text_that_is_too_short_is_refused(work: Work) -> None:
    work.text.write_text("one two\n" * 50)
    with refuses("data") as caught:
        read(work, "data.split=slice", "model.context=400")
    assert "training text" in caught.value.what
    valid = work.folder / "valid.txt"
    valid.write_text("x")
    with refuses("data") as caught:
        read(work, "data.split=slice", valid=valid)
    assert "validation text has 1 token," in caught.value.what


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


def test_models_that_do_not_continue_texts_write_none(work: Work) -> None:
    work.pretrain("evaluation.prompts=null", "model.shape=encoder", "objective.kind=masked", "training.steps=4")
    assert samples(work.run()) == []
