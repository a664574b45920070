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
from lmtool.interop.resolve import resolve_reference
from lmtool.printable import format_count, printable
from lmtool.recipe.spec.model import InitialEmbeddingsModelSpec
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.recurrent import PretrainedStatesModelSpec
from lmtool.recipe.spec.text import TokenizerFile
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.directory import FEATURES
from lmtool.runs.load import LoadedModel, PretrainedTokenVectors, load_run, load_trained_model
from lmtool.runs.reference import Reference
from lmtool.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class RunEmbeddings:
    """The embeddings of a run, by the names of its tokens. kind: kind of its tokenizer."""

    kind: str
    names: list[str]
    table_VD: NDArray[np.float32] = field(repr=False)

    @property
    def width(self) -> int:
        """Width of the vectors."""
        return int(self.table_VD.shape[1])

    @classmethod
    def open(cls, reference: Reference) -> "RunEmbeddings":
        """Reads the embeddings of a run. Raises CheckpointError for a damaged run, UsageError without embeddings."""
        loaded = load_run(reference, CPU)
        tokenizer = loaded.tokenizer
        names = ["" if i in tokenizer.special_ids else tokenizer.token_name(i) for i in range(tokenizer.vocab_size)]
        table_VD = loaded.model.token_vectors()[: len(names)].detach().float().numpy()
        return cls(tokenizer.kind, names, table_VD)

    def read(self, words: Container[str]) -> WordVectors:
        """Returns the vectors of the words in `words` that the run has."""
        ids = [i for i, name in enumerate(self.names) if name and name in words]
        return WordVectors([self.names[i] for i in ids], self.table_VD[ids], 0)


@dataclass(frozen=True)
class VectorSource:
    """The opened vectors that `model.embeddings` of a recipe names."""

    name: str
    vectors: VectorFile | RunEmbeddings

    def match_vocabulary(self, tokenizer: Tokenizer, counts_V: NDArray[np.int64]) -> PretrainedTokenVectors:
        """Finds the vectors of a tokenizer's entries. counts_V: counts of the training text, to report its coverage.

        A word without a vector takes that of its lower-cased form. Raises UsageError for a tokenizer of another kind
        than the vectors, and DataError if no word has a vector.
        """
        self.check_tokenizer_kind(tokenizer.kind)
        names = {tokenizer.token_name(i): i for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}
        lower = str.lower if tokenizer.kind == "word" else str
        vectors = self.vectors.read(names.keys() | set(map(lower, names)))
        rows = {word: i for i, word in enumerate(vectors.words)}
        # the last form that has a vector is used
        row_of = {i: rows[form] for name, i in names.items() for form in (lower(name), name) if form in rows}
        if not row_of:
            what = f"none of the {len(names):,} words of the vocabulary has a vector"
            raise DataError(what, where=printable(self.name), fix="name vectors of the language of the text")
        ids = list(row_of)
        counts_V = counts_V[: tokenizer.vocab_size].copy()
        counts_V[[i for i in tokenizer.special_ids if i != tokenizer.unk_id]] = 0
        share, of_text = len(ids) / len(names), counts_V[ids].sum() / max(1, counts_V.sum())
        line = f"embeddings: {printable(self.name)} has {len(ids):,} of {len(names):,} words of the vocabulary "
        line += f"({100 * share:.1f} %), {100 * of_text:.1f} % of the running words"
        if vectors.n_repeated:
            repeated = format_count(vectors.n_repeated, "word comes", "words come")
            line += f"; {repeated} again there, and the first vector counts"
        return PretrainedTokenVectors(ids, torch.from_numpy(vectors.vectors_ND[list(row_of.values())]), line)

    def check_tokenizer_kind(self, kind: str) -> None:
        """Raises UsageError unless the vectors are for tokens of this kind of tokenizer."""
        expected = self.vectors.kind if isinstance(self.vectors, RunEmbeddings) else "word"
        if kind != expected:
            of = f"of the tokens of a {expected} tokenizer, not of a {kind} one"
            what = f"the vectors of {printable(self.name)} are {of}"
            raise UsageError(what, where="model.embeddings", fix=f"set tokenizer.kind={expected}")


def open_pretrained_vectors(recipe: Recipe, base: Reference | None) -> VectorSource | None:
    """Opens the vectors that initialize the embeddings of a new model; None if the recipe names none.

    base: the run that initializes the model; its embeddings already have the vectors that its own recipe names.
    Raises UsageError if they do not fit the recipe, and the errors of files and runs.
    """
    name = embeddings_name(recipe)
    if name is None or (base is not None and embeddings_name(base.recipe) == name):
        return None
    assert isinstance(recipe.model, InitialEmbeddingsModelSpec)
    source = VectorSource(name, _open_file_or_run_embeddings(name))
    key = "embedding_width" if isinstance(recipe.model, Transformer) and recipe.model.embedding_width else "d_model"
    width = getattr(recipe.model, key)
    if source.vectors.width != width:
        what = f"the vectors have {source.vectors.width} numbers, and model.{key} is {width}"
        raise UsageError(what, where=printable(name), fix=f"set model.{key}={source.vectors.width}")
    if base is not None or not isinstance(recipe.tokenizer, TokenizerFile):
        source.check_tokenizer_kind(recipe.tokenizer.kind if base is None else base.tokenizer.kind)
    return source


def embeddings_name(recipe: Recipe) -> str | None:
    """Returns the file or run of word vectors that a recipe names."""
    return recipe.model.embeddings if isinstance(recipe.model, InitialEmbeddingsModelSpec) else None


def _open_file_or_run_embeddings(name: str) -> VectorFile | RunEmbeddings:
    if os.path.isfile(name):
        return VectorFile.open(Path(name))
    try:
        reference = resolve_reference(name)
    except CheckpointError as error:
        if os.path.isdir(name):
            raise
        what = f"there is no file and no run of word vectors called {name!r:.80}"
        raise DataError(what, where="model.embeddings", fix=error.fix) from error
    return RunEmbeddings.open(reference)


def load_features_and_update_recipe(recipe: Recipe, base: Reference | None) -> tuple[Recipe, LoadedModel | None]:
    """Loads the model whose states a recipe's model reads, if any.

    base: the run that initializes the model; it has a copy of the model that its own model reads.
    Returns the recipe with the sizes of these states and the tokenizer of their run, and that model; without features,
    the same recipe and None.
    Raises UsageError for a model without states, for one that reads features itself, for adapters without their base,
    and for features that `base` does not have; CheckpointError if there is no such run.
    """
    model = recipe.model
    if not isinstance(model, PretrainedStatesModelSpec) or (features := model.features) is None:
        return recipe, None
    if base is not None:
        old = base.recipe.model.features if isinstance(base.recipe.model, PretrainedStatesModelSpec) else None
        if old is None or old.run != features.run or old.beside != features.beside:
            what = f"{base.run.name} was trained without these features, for which its layers are too narrow"
            raise UsageError(what, where="model.features", fix="train from scratch with --recipe, or omit them")
    source = resolve_reference(features.run) if base is None else Reference.from_name(str(base.run.path / FEATURES))
    theirs = source.recipe.model
    if source.recipe.tuning.lora is not None:
        fix = f"make a whole run first: lmtool runs merge {source.run.name}"
        raise UsageError(f"{source.run.name} holds adapters only", where="model.features.run", fix=fix)
    if isinstance(theirs, PretrainedStatesModelSpec) and theirs.features is not None:
        what = f"{source.run.name} reads features of another run itself"
        raise UsageError(what, where="model.features.run", fix="name that run, or one without features")
    lm = load_trained_model(source, CPU)
    with torch.no_grad():
        layers = lm.eval().hidden_states_by_layer(Batch(torch.zeros(1, 2, dtype=torch.int64)))
    sizes = {"width": layers[-1].shape[-1], "mixed_layers": len(layers), "longest": lm.max_positions}
    values = {"model.features": features.with_unvalidated_values(sizes), "tokenizer": source.recipe.tokenizer}
    return recipe.with_unvalidated_values(values), LoadedModel(lm, source, source.recipe, CPU)


def describe_features(model: Model, feature_model: LoadedModel) -> str:
    """Describes the states that a model reads, in a line. feature_model: computes them."""
    assert isinstance(model, PretrainedStatesModelSpec)
    assert model.features is not None
    place = "beside" if model.features.beside else "in place of"
    extent = f"{model.features.mixed_layers} layers of {model.features.width}"
    described = f"{printable(model.features.run)}, {feature_model.model.description}, {extent}"
    return f"features: {described}, frozen, {place} the embeddings; with its tokenizer"
