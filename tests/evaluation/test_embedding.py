"""Embeddings of texts: the states of a model that reads them as in training."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.evaluation import embedding
from lmtool.evaluation.embedding import embed
from lmtool.runs.load import LoadedModel, load_run
from lmtool.tasks.build import build_task
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.schema import Columns
from tests.compute.together import together
from tests.support.errors import refuses
from tests.support.training import Work

TEXTS = ["the cat", "a dog sat", "ran away home", "naïve", "mat, mat"]
ENCODER = (
    "model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 16, n_segments: 2}",
    "objective.kind=masked",
)
BASES: dict[str, tuple[str, ...]] = {"encoder": ENCODER, "decoder of one text": ("data.split=slice",)}


def states(loaded: LoadedModel, tokens: list[int], layer: int) -> np.ndarray[Any, Any]:
    """The states of a row of tokens, read alone."""
    with torch.inference_mode():
        return loaded.model.hidden_states_by_layer(Batch(torch.tensor([tokens])))[layer][0].numpy()


@pytest.mark.parametrize("family", BASES)
def test_a_tuned_model_reads_texts_as_its_rows(work: Work, family: str) -> None:
    """`first` and `last` are the positions that a head reads."""
    work.pretrain(*BASES[family], "training.steps=1", name="base")
    work.finetune("training.steps=1", source=work.run("base"))
    loaded = load_run(str(work.run("tuned")))
    rows = [
        loaded.prompt_format.encode_and_truncate_row([np.array(loaded.tokenizer.encode(text))])[0].tolist()
        for text in TEXTS
    ]
    task = build_task(loaded.recipe, loaded.prompt_format, "", Columns(("text",)), ())
    asked = task.encode([LabelledRow((text,), None, None, i) for i, text in enumerate(TEXTS)])
    assert [row.tokens.tolist() for row in asked] == rows, "and so are its input rows"
    for layer in (0, -1):
        for pool, place in (("first", 0), ("last", -1)):
            for one, row in zip(embed(loaded, TEXTS, layer, pool), rows, strict=True):  # type: ignore[arg-type]
                np.testing.assert_allclose(one.vectors[0], states(loaded, row, layer)[place], rtol=1e-4, atol=1e-5)
        for one, row in zip(embed(loaded, TEXTS, layer, "mean"), rows, strict=True):
            # special tokens are not part of a text
            expected = states(loaded, row, layer)[1:-1].mean(0)
            np.testing.assert_allclose(one.vectors[0], expected, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    work = Work(tmp_path_factory.mktemp("encoder"))
    work.pretrain(*ENCODER, "training.steps=1")
    return load_run(str(work.run()))


@pytest.mark.parametrize("size", [2, 7])
def test_any_number_of_processes_gives_the_same(
    encoder: LoadedModel, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(embedding, "TEXTS_PER_GROUP", 4)  # so that there are two rounds
    alone = list(embed(encoder, TEXTS, -1, "none"))
    for found in together(monkeypatch, size, lambda _: list(embed(encoder, TEXTS, -1, "none"))):
        assert [(one.text, one.words) for one in found] == [(one.text, one.words) for one in alone]
        for one, other in zip(found, alone, strict=True):
            np.testing.assert_allclose(one.vectors, other.vectors, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2])
def test_a_text_that_cannot_be_read_is_told(encoder: LoadedModel, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    # 14 tokens fit between the special tokens
    long = "cat " * 4
    with pytest.raises(UsageError, match="text 2"):
        together(monkeypatch, size, lambda _: list(embed(encoder, ["cat", long], -1, "mean")))
    (short,) = embed(encoder, [long], -1, "none", truncate=True)
    assert short.words is not None
    assert len(short.words) == 4
    with refuses("data"):
        list(embed(encoder, [], -1, "mean"))


def test_no_path_is_left_behind(encoder: LoadedModel, tmp_path: Path) -> None:
    """A file that cannot be completed is not created."""
    with pytest.raises(UsageError, match="text 2"):
        embedding.save_embeddings(tmp_path / "a.npz", embed(encoder, ["cat", "cat " * 9], -1, "mean"))
    assert not list(tmp_path.glob("*.npz"))
