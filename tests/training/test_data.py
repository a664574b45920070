"""A training text: its description, inferred settings, and errors."""

from pathlib import Path
from typing import Any

import pytest

from lmtool.compute.device import CPU
from lmtool.compute.processes import World
from lmtool.errors import DataError
from lmtool.inference.load import build_model
from lmtool.model import SkipGramModel
from lmtool.recipe.load import Setting, load
from lmtool.recipe.spec.recipe import Recipe
from lmtool.training.data import TextData, prepare_text
from tests.support.training import Work, no_report, words


def resolved(work: Work, *overrides: str, valid: Path | None = None) -> tuple[Recipe, TextData]:
    flags = [Setting("data.train", [str(work.text)], "TEXT")]
    if valid:
        flags.append(Setting("data.valid", [str(valid)], "--valid"))
    return prepare_text(load(work.recipe, [*overrides, *flags]).recipe, None, World(), no_report)


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
    both, apart = [Setting("data.train", [*map(str, files)], "TEXT")], ["data.documents=whole"]

    def told(*overrides: str) -> tuple[str, ...]:
        return prepare_text(load(work.recipe, [*apart, *overrides, *both]).recipe, None, World(), no_report)[1].warnings

    shares = {told(f"seed={seed}") for seed in range(8)}
    advice = "-s data.split=slice holds out the end of the text, --valid FILE another"
    sizes = (f"1 of 2 documents, with {share} % of the tokens, are held out: {advice}" for share in (25, 75))
    assert shares == {(size,) for size in sizes}
    assert told("data.split=slice") == ()
    assert not any("held out" in line for line in told(f"data.valid={files[1]}"))
    assert read(work, "data.valid_fraction=0.2").warnings == ()


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


@pytest.mark.parametrize(
    ("overrides", "valid", "what"),
    [
        (("data.split=slice", "model.context=400"), None, "training text has 3.. tokens, but a context of 400"),
        ((), "x", "validation text has 1 token,"),
    ],
)
def test_a_text_that_is_too_short_is_refused(
    work: Work, overrides: tuple[str, ...], valid: str | None, what: str
) -> None:
    work.text.write_text("one two\n" * 50)
    path = None
    if valid is not None:
        path = work.folder / "valid.txt"
        path.write_text(valid)
        overrides = ("data.split=slice",)
    with pytest.raises(DataError, match=what):
        read(work, *overrides, valid=path)
