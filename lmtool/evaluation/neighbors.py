"""Finds the nearest tokens of a word, or the words nearest to it in a context, by cosine similarity; compares cosine
similarities with those that people gave.

Shapes: V vocabulary, D model width, N points.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from heapq import nlargest
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lmtool.compute.device import configure_compute
from lmtool.data.files import quote, quote_all
from lmtool.data.table import INFERRED_FORMAT, SkippedRowCounts, Table, open_table, parse_label_number
from lmtool.errors import DataError, UsageError
from lmtool.evaluation.embedding import embed
from lmtool.interop.resolve import resolve_reference
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.text import Data
from lmtool.runs.load import LoadedModel, load_run
from lmtool.tokenization.tokenizer import Tokenizer, find_word_spans

MapName = Literal["pca", "tsne"]

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Neighbor:
    """A token (`Tokenizer.display_token`) or a word, and the cosine similarity of its vector to that of the query.

    text: that has the word; None for a token. start: character at which the word begins there.
    """

    word: str
    similarity: float
    text: str | None = None
    start: int = 0


class Neighbors(NamedTuple):
    """The nearest tokens or words of a query, the nearest first.

    word: the query, as a token or as in its text. vectors: of the query and then of the nearest (1 + N, D).
    """

    word: str
    nearest: list[Neighbor]
    loaded: LoadedModel
    vectors: Vectors


@torch.inference_mode()
def find_neighbors(loaded: LoadedModel, word: str, k: int, candidates: Sequence[str] | None = None) -> Neighbors:
    """Finds the k tokens nearest to a word by cosine, among the static token vectors of a model.

    candidates: words that are compared; all tokens by default. Raises UsageError when a word is not a token of the
    run's tokenizer, or the model has no vectors.
    """
    token = require_single_token(loaded.tokenizer, word)
    query_D = loaded.model.token_vectors()[token]
    among = None if candidates is None else {require_single_token(loaded.tokenizer, one) for one in candidates}
    return _find_tokens_nearest_to_vector(loaded, query_D, [token], loaded.tokenizer.display_token(token), k, among)


@torch.inference_mode()
def solve_analogy(loaded: LoadedModel, words_abc: tuple[str, str, str], k: int) -> Neighbors:
    """Finds the k tokens nearest to a - b + c for the normalized vectors of three words a, b, c, except these words.

    king - man + woman is to a woman as a king is to a man (3CosAdd; Mikolov, Yih and Zweig 2013). Raises as
    `find_neighbors` does.
    """
    tokens = [require_single_token(loaded.tokenizer, word) for word in words_abc]
    a_D, b_D, c_D = F.normalize(loaded.model.token_vectors()[tokens], dim=-1)
    a, b, c = (loaded.tokenizer.display_token(token).strip() for token in tokens)
    return _find_tokens_nearest_to_vector(loaded, a_D - b_D + c_D, tokens, f"{a} - {b} + {c}", k)


def _find_tokens_nearest_to_vector(
    loaded: LoadedModel,
    query_D: Tensor,
    excluded_tokens: list[int],
    query_name: str,
    k: int,
    candidate_tokens: set[int] | None = None,
) -> Neighbors:
    """Finds the k tokens nearest to a vector. candidate_tokens: those that are compared; all by default."""
    tokenizer = loaded.tokenizer
    vectors_VD = loaded.model.token_vectors()[: tokenizer.vocab_size]
    similarity_V = F.normalize(vectors_VD, dim=-1) @ F.normalize(query_D, dim=-1)
    excluded = {*tokenizer.special_ids, *excluded_tokens}
    if candidate_tokens is not None:
        excluded |= {*range(tokenizer.vocab_size)} - candidate_tokens
    similarity_V[list(excluded)] = -torch.inf
    best = similarity_V.topk(min(k, tokenizer.vocab_size - len(excluded)))
    ids = best.indices.tolist()
    nearest = [Neighbor(tokenizer.display_token(i), s) for i, s in zip(ids, best.values.tolist(), strict=True)]
    return Neighbors(query_name, nearest, loaded, torch.cat((query_D[None], vectors_VD[ids])).float().cpu().numpy())


def find_context_neighbors(
    loaded: LoadedModel,
    word: str,
    text: str,
    other_texts: Iterable[str],
    layer: int,
    k: int,
    *,
    each_word_once: bool = False,
) -> Neighbors:
    """Finds the k words of other texts nearest to a word of `text`, by cosine of the states of a layer; see `embed`.

    Uses the first occurrence of the word. A word that several texts have with equal states, as after equal beginnings
    in a left-to-right model, counts once.

    other_texts: truncated to the context; `text` itself is left out. each_word_once: list a word only where it is
    nearest, in upper or lower case. Raises UsageError if `text` does not have the word, DataError if there is no other
    text, and as `embed` does.
    """
    (query,) = embed(loaded, [text], layer, "none")
    assert query.words is not None
    index = _find_word_index_in_any_case(query.words, word)
    vector_D = query.vectors[index] / (np.linalg.norm(query.vectors[index]) or 1)
    others = [other for other in other_texts if other != text]

    def iterate_words() -> Iterator[tuple[Neighbor, Vectors]]:
        seen: set[tuple[str, float]] = set()
        # the index of the word stands for the character where it begins until the nearest are known
        for embedded in embed(loaded, others, layer, "none", truncate=True):
            lengths = np.linalg.norm(embedded.vectors, axis=1)
            similarities = (embedded.vectors @ vector_D / np.where(lengths, lengths, 1)).tolist()
            for i, (other, similarity) in enumerate(zip(embedded.words or (), similarities, strict=True)):
                if (other, round(similarity, 6)) not in seen:
                    seen.add((other, round(similarity, 6)))
                    yield Neighbor(other, similarity, others[embedded.text], i), embedded.vectors[i]

    def keep_nearest(occurrences: Iterable[tuple[Neighbor, Vectors]]) -> Iterable[tuple[Neighbor, Vectors]]:
        nearest: dict[str, tuple[Neighbor, Vectors]] = {}
        for one in occurrences:
            known = nearest.setdefault(one[0].word.casefold(), one)
            if one[0].similarity > known[0].similarity:
                nearest[one[0].word.casefold()] = one
        return nearest.values()

    words = keep_nearest(iterate_words()) if each_word_once else iterate_words()
    best = nlargest(k, words, key=lambda one: one[0].similarity)
    vectors = np.stack([query.vectors[index], *(vector for _, vector in best)])
    near = []
    for one, _ in best:
        text = one.text or ""
        spans = find_word_spans(text)[one.start :]
        near.append(replace(one, start=next(start for start, stop in spans if text[start:stop] == one.word)))
    return Neighbors(query.words[index], near, loaded, vectors)


def _find_word_index_in_any_case(words: list[str], word: str) -> int:
    """Returns the index of a word among the words of a text: as it is spelled, else in any case."""
    for spelled in (str, str.casefold):
        folded = [spelled(other) for other in words]
        if spelled(word) in folded:
            return folded.index(spelled(word))
    raise _unknown_word_error(f"{word!r:.80} is not a word of the text", word, words, "name a word as the text has it")


def _unknown_word_error(what: str, word: str, words: list[str], fix: str) -> UsageError:
    alike = get_close_matches(word, words, n=3, cutoff=0.6)
    return UsageError(what, fix=f"did you mean {' or '.join(alike)}?" if alike else fix)


def project_to_plane(vectors: Vectors, method: MapName) -> Vectors:
    """Projects vectors (N, D) to points in the plane (N, 2), N > 1.

    pca: the two principal components; the sign of each makes its largest coordinate positive. tsne: t-SNE (van der
    Maaten and Hinton 2008) from the principal components, with a perplexity of a third of the points, at most 30.
    """
    points_ND = torch.from_numpy(vectors).double()
    if method == "tsne":
        from sklearn.manifold import TSNE

        perplexity = max(1.0, min(30.0, (len(vectors) - 1) / 3))
        start = _project_to_two_principal_components(points_ND)
        start = start / (start[:, 0].std() or 1) * 1e-4
        search = TSNE(2, perplexity=perplexity, init=start.numpy(), learning_rate="auto", random_state=0)
        return np.asarray(search.fit_transform(points_ND.numpy()), dtype=np.float32)
    return _project_to_two_principal_components(points_ND).numpy().astype(np.float32)


def _project_to_two_principal_components(points_ND: Tensor) -> Tensor:
    """Returns the coordinates along the two directions of the largest variance (N, 2)."""
    centred_ND = points_ND - points_ND.mean(0)
    u_NK, s_K, _ = torch.linalg.svd(centred_ND, full_matrices=False)
    points_N2 = F.pad(u_NK * s_K, (0, 2))[:, :2]
    largest_2 = points_N2.gather(0, points_N2.abs().argmax(0, keepdim=True))[0]
    return points_N2 * torch.where(largest_2 < 0, -1.0, 1.0)


def require_single_token(tokenizer: Tokenizer, word: str) -> int:
    """Returns the token of a word: after a space, or else at the beginning of a text.

    Raises UsageError, which lists similarly spelled words, if there is none.
    """
    if (token := find_single_token(tokenizer, word)) is not None:
        return token
    words = {tokenizer.display_token(i).strip() for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}
    what, fix = f"{word!r} is not a token of this run", "name a single word of the training text"
    raise _unknown_word_error(what, word, sorted(words), fix)


def find_single_token(tokenizer: Tokenizer, word: str) -> int | None:
    """Returns the token of a word as `require_single_token` does; None if there is none."""
    for text in (f" {word}", word):
        ids = tokenizer.encode(text)
        if len(ids) == 1 and ids[0] not in tokenizer.special_ids:
            return ids[0]
    return None


@dataclass(frozen=True)
class SimilarityCorrelation:
    """Spearman's rho between cosines and given similarities, over the pairs whose words both have vectors.

    rho: NaN if all cosines, or all similarities, are equal. n_pairs: of the table. missing: words without a vector.
    """

    loaded: LoadedModel
    rho: float
    n_scored: int
    n_pairs: int
    missing: tuple[str, ...]
    skipped: SkippedRowCounts

    def to_record(self) -> dict[str, object]:
        """Returns the results as a JSON value."""
        return {
            "spearman": None if math.isnan(self.rho) else self.rho,
            "scored": self.n_scored,
            "pairs": self.n_pairs,
            "missing": list(self.missing),
        }

    def lines(self) -> list[str]:
        """Formats the results as text lines."""
        share = 100 * self.n_scored / self.n_pairs
        lines = [f"spearman  {self.rho:.4f}", f"pairs     {self.n_scored:,} of {self.n_pairs:,} ({share:.1f} %)"]
        if self.missing:
            more = ", ..." if len(self.missing) > 8 else ""
            words = f"{len(self.missing):,} word{'s' * (len(self.missing) != 1)}"
            lines.append(f"missing   {words}: {', '.join(self.missing[:8])}{more}")
        return lines


def correlate_with_human_similarities(
    run_name: str, table_path: str, *, device: DeviceName = "auto", table_format: Data = INFERRED_FORMAT
) -> SimilarityCorrelation:
    """Compares a table of similarities with the static vectors of a run.

    table_path: a table whose first two columns are words, and the next one of numbers their similarity, as in
    WordSim-353 and SimLex-999. table_format: how it is read. A word is looked up as it is spelled, then in lower case.
    Raises DataError for a table that is not like that, or of which less than two pairs have vectors.
    """
    from scipy.stats import spearmanr

    table = open_table(table_path, table_format)
    skipped = SkippedRowCounts()
    pairs = list(_read_rated_word_pairs(table, skipped if table_format.skip_bad_rows else None))
    loaded = load_run(resolve_reference(run_name), configure_compute(device, "float32"))
    token: dict[str, int | None] = {}
    for word in dict.fromkeys(word for pair in pairs for word in pair[:2]):
        token[word] = find_single_token(loaded.tokenizer, word)
        if token[word] is None:
            token[word] = find_single_token(loaded.tokenizer, word.lower())
    scored = [(token[a], token[b], score) for a, b, score in pairs if None not in (token[a], token[b])]
    if len(scored) < 2:
        what = f"{len(scored)} of {len(pairs)} pairs are of words that both have vectors; a correlation needs two"
        raise DataError(what, where=quote(table_path), fix="name a table of words that are in the run's training text")
    ones, others, scores = zip(*scored, strict=True)
    unit_VD = F.normalize(loaded.model.token_vectors().detach().double(), dim=-1)
    cosines = (unit_VD[list(ones)] * unit_VD[list(others)]).sum(1)
    with warnings.catch_warnings():
        # A correlation of equal numbers warns.
        warnings.simplefilter("ignore")
        rho = float(spearmanr(scores, cosines.cpu().numpy()).statistic)
    missing = tuple(sorted(word for word, index in token.items() if index is None))
    return SimilarityCorrelation(loaded, rho, len(scored), len(pairs), missing, skipped)


def _read_rated_word_pairs(table: Table, skipped: SkippedRowCounts | None) -> Iterator[tuple[str, str, float]]:
    """Yields the two words of each row, and their similarity."""
    column = None
    for row in table.rows(skipped):
        cells = [str(value) for value in row.values]
        if column is None:
            column = next((i for i, cell in enumerate(cells) if i > 1 and parse_label_number(cell) is not None), None)
        similarity = None if column is None else parse_label_number(cells[column])
        if similarity is None:
            what = "no number after two words: a table of similarities has two columns of words, then one of numbers"
            fix = f"write it with a header, as word1,word2,similarity; it has {quote_all(table.names)}"
            raise DataError(what, where=table.file.format_location(row.number, row.line, None), fix=fix)
        yield cells[0].strip(), cells[1].strip(), similarity
