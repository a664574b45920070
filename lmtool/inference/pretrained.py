"""Pretrained embeddings of a new model: word vectors of a file or a run, and contextual features of another model.

Shapes: V vocabulary, N words with a vector, D numbers of each.
"""

import os
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.data.vectors import VectorFile, WordVectors
from lmtool.errors import CheckpointError, DataError, UsageError
from lmtool.inference.load import LoadedModel, MatchedVectors, load_run, trained_model
from lmtool.inference.reference import Reference, resolve_reference
from lmtool.printable import counted, plain
from lmtool.recipe.spec.model import VectorsSpec
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.recurrent import FeaturesSpec
from lmtool.recipe.spec.text import TokenizerFile
from lmtool.recipe.spec.transformer import Transformer
from lmtool.run.directory import FEATURES
from lmtool.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class RunVectors:
    """The embeddings of a run, by the names of its tokens. kind: of its tokenizer."""

    kind: str
    names: list[str]
    table_VD: NDArray[np.float32] = field(repr=False)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return int(self.table_VD.shape[1])

    @classmethod
    def open(cls, reference: Reference) -> "RunVectors":
        """Raises CheckpointError for a damaged run, UsageError without embeddings."""
        loaded = load_run(reference, CPU)
        tokenizer = loaded.tokenizer
        names = ["" if i in tokenizer.special_ids else tokenizer.token_name(i) for i in range(tokenizer.vocab_size)]
        table_VD = loaded.model.token_vectors()[: len(names)].detach().float().numpy()
        return cls(tokenizer.kind, names, table_VD)

    def read(self, wanted: Container[str]) -> WordVectors:
        """The vectors of those of the words `wanted` that the run has."""
        ids = [i for i, name in enumerate(self.names) if name and name in wanted]
        return WordVectors([self.names[i] for i in ids], self.table_VD[ids], 0)


@dataclass(frozen=True)
class VectorSource:
    """What `model.embeddings` of a recipe names, opened."""

    name: str
    vectors: VectorFile | RunVectors

    def match(self, tokenizer: Tokenizer, counts_V: NDArray[np.int64]) -> MatchedVectors:
        """The vectors of a tokenizer's entries. counts_V: of the training text, for the share of it that they cover.

        A word without a vector takes that of its lower-cased form. Raises UsageError for a tokenizer of subwords,
        unless the vectors are of a run with such a one, and DataError when no word has a vector.
        """
        self.check_kind(tokenizer.kind)
        names = {tokenizer.token_name(i): i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}
        lower = str.lower if tokenizer.kind == "word" else str
        vectors = self.vectors.read(names.keys() | set(map(lower, names)))
        rows = {word: i for i, word in enumerate(vectors.words)}
        # the last form that has a vector counts
        row_of = {i: rows[form] for name, i in names.items() for form in (lower(name), name) if form in rows}
        if not row_of:
            what = f"none of the {len(names):,} words of the vocabulary has a vector"
            raise DataError(what, where=plain(self.name), fix="name vectors of the language of the text")
        ids = list(row_of)
        counts_V = counts_V[: tokenizer.vocab_size].copy()
        counts_V[[i for i in tokenizer.special_ids if i != tokenizer.unk_id]] = 0
        line = (
            f"embeddings: {plain(self.name)} has {len(ids):,} of {len(names):,} words of the vocabulary "
            f"({100 * len(ids) / len(names):.1f} %), {100 * counts_V[ids].sum() / max(1, counts_V.sum()):.1f} % of the "
            "running words"
        )
        if vectors.n_repeated:
            line += (
                f"; {counted(vectors.n_repeated, 'word comes', 'words come')} again there, and the first vector counts"
            )
        return MatchedVectors(ids, torch.from_numpy(vectors.vectors_ND[list(row_of.values())]), line)

    def check_kind(self, kind: str) -> None:
        """Raise UsageError for a kind of tokenizer whose entries the vectors are not of."""
        expected = self.vectors.kind if isinstance(self.vectors, RunVectors) else "word"
        if kind != expected:
            what = f"the vectors of {plain(self.name)} are of the tokens of a {expected} tokenizer, not of a {kind} one"
            raise UsageError(what, where="model.embeddings", fix=f"set tokenizer.kind={expected}")


def open_vectors(recipe: Recipe, base: Reference | None) -> VectorSource | None:
    """What the embeddings of a new model begin with; None where the recipe names nothing.

    base: the run that the model is initialised from, whose embeddings hold what its own recipe names.
    Raises UsageError where they do not fit the recipe, and the errors of files and runs.
    """
    name = named_vectors(recipe)
    if name is None or (base is not None and named_vectors(base.recipe) == name):
        return None
    assert isinstance(recipe.model, VectorsSpec)
    source = VectorSource(name, _open(name))
    key = "embedding_width" if isinstance(recipe.model, Transformer) and recipe.model.embedding_width else "d_model"
    width = getattr(recipe.model, key)
    if source.vectors.width != width:
        what = f"the vectors have {source.vectors.width} numbers, and model.{key} is {width}"
        raise UsageError(what, where=plain(name), fix=f"set model.{key}={source.vectors.width}")
    if base is not None or not isinstance(recipe.tokenizer, TokenizerFile):
        source.check_kind(recipe.tokenizer.kind if base is None else base.tokenizer.kind)
    return source


def named_vectors(recipe: Recipe) -> str | None:
    """The file or run of word vectors that a recipe names."""
    return recipe.model.embeddings if isinstance(recipe.model, VectorsSpec) else None


def _open(name: str) -> VectorFile | RunVectors:
    if os.path.isfile(name):
        return VectorFile.open(Path(name))
    try:
        reference = resolve_reference(name)
    except CheckpointError as error:
        if os.path.isdir(name):
            raise
        what = f"there is no file and no run of word vectors called {name!r:.80}"
        raise DataError(what, where="model.embeddings", fix=error.fix) from error
    return RunVectors.open(reference)


def open_features(recipe: Recipe, base: Reference | None) -> tuple[Recipe, LoadedModel | None]:
    """The recipe with the sizes of the states that its model reads, and the tokenizer of the run that has these; and
    that run. The same recipe, and None, where it has no features.

    base: the run that the model is initialised from, which keeps a copy of what its own model reads.
    Raises UsageError for a model without states, for one that reads features itself, for adapters without their base,
    and for features that `base` does not have; CheckpointError where there is no such run.
    """
    model = recipe.model
    if not isinstance(model, FeaturesSpec) or (features := model.features) is None:
        return recipe, None
    if base is not None:
        old = base.recipe.model.features if isinstance(base.recipe.model, FeaturesSpec) else None
        if old is None or old.run != features.run or old.beside != features.beside:
            what = f"{base.run.name} was trained without these features, for which its layers are too narrow"
            raise UsageError(what, where="model.features", fix="train from scratch with --recipe, or omit them")
    source = resolve_reference(features.run if base is None else str(base.run.path / FEATURES))
    theirs = source.recipe.model
    if source.recipe.tuning.lora is not None:
        fix = f"make a whole run first: lmtool runs merge {source.run.name}"
        raise UsageError(f"{source.run.name} holds adapters only", where="model.features.run", fix=fix)
    if isinstance(theirs, FeaturesSpec) and theirs.features is not None:
        what = f"{source.run.name} reads features of another run itself"
        raise UsageError(what, where="model.features.run", fix="name that run, or one without features")
    lm = trained_model(source, CPU)
    with torch.no_grad():
        layers = lm.eval().layers(Batch(torch.zeros(1, 2, dtype=torch.int64)))
    sizes = {"width": layers[-1].shape[-1], "mixed_layers": len(layers), "longest": lm.longest}
    values = {"model.features": features.with_values(sizes), "tokenizer": source.recipe.tokenizer}
    return recipe.with_values(values), LoadedModel(lm, source, source.recipe, CPU)


def describe_features(model: Model, source: LoadedModel) -> str:
    """A line on the states that a model reads. source: which has them."""
    assert isinstance(model, FeaturesSpec)
    assert model.features is not None
    place = "beside" if model.features.beside else "in place of"
    extent = f"{model.features.mixed_layers} layers of {model.features.width}"
    described = f"{plain(model.features.run)}, {source.model.description}, {extent}"
    return f"features: {described}, frozen, {place} the embeddings; with its tokenizer"
