"""Training on a mixture of texts."""

from typing import Any

import numpy as np
import pytest

from lmtool.compute.processes import World
from lmtool.errors import DataError, RecipeError, UsageError
from lmtool.objective import build_objective
from lmtool.recipe.load import Resolved, Setting, load
from lmtool.training import start
from lmtool.training.data import read_text
from tests.training.tiny import Work, after, documents, metrics, no_report


def mixed(work: Work, *overrides: str, web: float = 3, code: float = 1) -> Resolved:
    """A recipe for small letters and capitals, in files of their own."""
    (work.folder / "web.txt").write_text(documents(60), encoding="utf-8")
    (work.folder / "code").mkdir(exist_ok=True)
    for number in range(2):
        text = documents(30, number).upper()
        (work.folder / "code" / f"{number}.txt").write_text(text, encoding="utf-8")
    mixture = f"data.mixture={{{work.folder}/web.txt: {web}, {work.folder}/code: {code}}}"
    return load(work.recipe, [mixture, *overrides])


def pretrained(work: Work, resolved: Resolved, name: str, **options: Any) -> list[Any]:
    options = {"stop": lambda: False} | options
    session = start.pretrain(resolved, None, output=work.run(name), command=["test"], report=no_report, **options)
    return list(session)


def test_texts_have_their_shares(work: Work) -> None:
    recipe = mixed(work).recipe
    data = read_text(recipe, None, World(), no_report)
    tokenizer = data.framing.tokenizer
    examples = data.examples(build_objective(data.recipe, tokenizer, None))
    read = [tokenizer.decode(one.tokens.tolist()) for one in examples.read(np.arange(1000))]
    capitals = sum(text.upper() == text for text in read)
    assert capitals == 250
    assert sum(text.lower() == text for text in read) == 750
    again = examples.read(np.array([999, 3]))
    assert [tokenizer.decode(one.tokens.tolist()) for one in again] == [read[999], read[3]]
    assert "75 % " in data.lines[0]
    found = examples.documents(np.arange(1000))
    assert (found[0], found[-1]) == (0, 60 + 2 * 30 - 12 - 1)


def test_every_text_is_read_as_often_as_it_takes(work: Work) -> None:
    """A text of few windows is read again, shuffled anew, while the other is not at its end."""
    data = read_text(mixed(work, web=1, code=9).recipe, None, World(), no_report)
    examples = data.examples(build_objective(data.recipe, data.framing.tokenizer, None))
    read = [tuple(one.tokens.tolist()) for one in examples.read(np.arange(2 * examples.per_epoch))]
    assert len(set(read)) < len(read)


def test_stopping_and_resuming_changes_no_bit(work: Work) -> None:
    pretrained(work, mixed(work), "whole")
    pretrained(work, mixed(work), "cut", stop=after(5))
    work.resume(name="cut")
    losses = [[record["loss"] for record in metrics(work.run(name))] for name in ("whole", "cut")]
    assert losses[0] == losses[1]


def test_tokens_do_not_depend_on_the_weights(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    read_text(mixed(work).recipe, None, World(), no_report)
    monkeypatch.setattr("lmtool.text.prepare._write", None)
    read_text(mixed(work, web=1, code=2).recipe, None, World(), no_report)


def test_other_weights_are_another_run(work: Work) -> None:
    pretrained(work, mixed(work), "run", stop=after(5))
    with pytest.raises(Exception, match=r"data\.mixture"):
        work.resume("data.mixture={web.txt: 1}")


def test_what_is_no_mixture(work: Work) -> None:
    with pytest.raises(RecipeError, match="mixture: names the texts itself"):
        mixed(work, "data.train=text.txt")
    with pytest.raises(RecipeError, match="above 0"):
        mixed(work, web=0)
    with pytest.raises(RecipeError, match="ngram"):
        mixed(work, "model={kind: ngram, order: 2}", "objective.kind=causal")
    resolved = mixed(work, "model.context=4000")
    with pytest.raises(DataError, match="tokens"):
        pretrained(work, resolved, "long")
    with pytest.raises(UsageError, match="no text"):
        pretrained(work, load(work.recipe), "none")


def test_a_run_goes_on_with_a_mixture_and_then_with_one_text(work: Work) -> None:
    work.pretrain("training.steps=2", name="first")
    continued, base = start.to_continue(str(work.run("first")), mixed(work, "training.steps=2"), (), ())
    list(
        start.pretrain(
            continued, base, output=work.run("mixed"), command=["test"], report=no_report, stop=lambda: False
        )
    )
    assert list(load(work.run("mixed") / "recipe.yaml").recipe.data.mixture.values()) == [3, 1]
    flags = [Setting("data.train", [str(work.text)], "TEXT")]
    alone, _ = start.to_continue(str(work.run("mixed")), None, (), flags)
    assert alone.recipe.data.mixture == {}
