"""Attributes the prediction of a classifier to words: leave-one-out, integrated gradients, attention rollout.

Shapes: B rows, T positions, S keys, L layers, N heads, D width, C classes, M steps, W words.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmtool.arrays import Floats
from lmtool.batch import Batch, pad_right_with_keep_mask
from lmtool.evaluation.attention import TextAttention, make_row_forward_pass_input
from lmtool.model.heads import Classifier
from lmtool.printable import printable
from lmtool.recipe.spec.objective import Classification
from lmtool.runs.load import LoadedModel
from lmtool.tokenization.prompt_format import TokenIds
from lmtool.tokenization.tokenizer import Tokenizer, find_word_spans

PATH_STEPS = 64
"""Points on the path of integrated gradients."""

BATCH_POSITIONS = 4096
"""Positions computed at once."""


@dataclass(frozen=True)
class WordAttribution:
    """The contribution of each word of the texts to the prediction of a classifier.

    Args:
        label: the predicted class, the most probable of several labels, or "" for a number.
        score: log-probability of the class, logit of the label, or the number.
        leave_one_out: how much lower the score is without the tokens of the word (Li, Monroe and Jurafsky 2016).
        integrated_gradients: summed over the tokens of the word; see `compute_integrated_gradients`.
        rollout: attention that arrives from the word, see `compute_attention_rollout`; None without self-attention, and
            with max pooling.
    """

    label: str
    score: float
    words: tuple[str, ...]
    leave_one_out: tuple[float, ...]
    integrated_gradients: tuple[float, ...]
    rollout: tuple[float, ...] | None

    def columns(self) -> list[tuple[str, tuple[float, ...]]]:
        """Returns the name of each measure, and its value for each word."""
        columns = [("leave-one-out", self.leave_one_out), ("integrated gradients", self.integrated_gradients)]
        return columns if self.rollout is None else [*columns, ("rollout", self.rollout)]

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON value."""
        return asdict(self)


def attribute_words(loaded: LoadedModel, texts: Sequence[str], attention: TextAttention) -> WordAttribution:
    """Attributes the prediction of a classifier, which is not packed, to the words of texts.

    attention: of the classifier on the same texts. Raises UsageError as `make_row_forward_pass_input` does.
    """
    model, spec = loaded.model, loaded.recipe.objective
    assert isinstance(model, Classifier)
    assert isinstance(spec, Classification)
    batch = make_row_forward_pass_input(loaded, texts).batch.to(loaded.device)
    with torch.no_grad():
        scores_C = model.run_head(batch).scores[0]
    best = int(scores_C.argmax())

    def score(batch: Batch) -> Tensor:
        scores_BC = model.run_head(batch).scores
        match spec.task:
            case "class":
                return scores_BC.log_softmax(-1)[:, best]
            case "number" if spec.scale is not None and spec.center is not None:
                return scores_BC[:, 0] * spec.scale + spec.center
            case _:
                return scores_BC[:, best]

    words, tokens = _find_words_and_token_positions(loaded, texts)
    whole = float(score(batch).detach())
    vectors, modules = model.token_vectors(), iter(model.modules())
    embedding = next(part for part in modules if isinstance(part, nn.Embedding) and part.weight is vectors)
    per_token_T = compute_integrated_gradients(score, embedding, batch)
    rollout_T = _compute_rollout_to_pooled_vector(model, attention)
    left_out_W = whole - score_without_each_word(score, batch, tokens, loaded.prompt_format.between[0])

    def sum_by_word(values_T: Floats) -> tuple[float, ...]:
        return tuple(float(values_T[of_word].sum()) for of_word in tokens)

    rollout = None if rollout_T is None else sum_by_word(rollout_T)
    label = spec.labels[best] if spec.labels else ""
    return WordAttribution(label, whole, tuple(words), tuple(left_out_W.tolist()), sum_by_word(per_token_T), rollout)


def _find_words_and_token_positions(loaded: LoadedModel, texts: Sequence[str]) -> tuple[list[str], list[list[int]]]:
    """Returns the words of the texts, and for each the positions of its tokens in the row, at least one.

    Control characters in words are escaped. A token belongs to the first word that it has a character of.
    """
    words, positions = [], []
    first = len(loaded.prompt_format.before)
    for text in texts:
        ids, spans = loaded.tokenizer.encode_with_offsets(text)
        for word, tokens in _assign_tokens_to_words(text, spans):
            words.append(word)
            positions.append([first + i for i in tokens])
        first += len(ids) + len(loaded.prompt_format.between)
    return words, positions


def find_words_and_positions_in_row(tokenizer: Tokenizer, tokens_T: TokenIds) -> tuple[list[str], list[list[int]]]:
    """Returns the words of an encoded row, and for each the positions of its tokens, at least one.

    Needs no text, unlike `_find_words_and_token_positions`: special tokens separate texts, and the characters of a
    token are those that it adds to the decoded tokens before it.
    """
    words, positions = [], []
    special = tokenizer.special_ids - {tokenizer.unk_id}
    for is_special, run in groupby(enumerate(tokens_T.tolist()), key=lambda numbered: numbered[1] in special):
        if is_special:
            continue
        numbers, ids = zip(*run, strict=True)
        ends = pairwise(tokenizer.count_characters_of_decoded_prefixes(ids))
        for word, tokens in _assign_tokens_to_words(tokenizer.decode(ids), list(ends)):
            words.append(word)
            positions.append([numbers[i] for i in tokens])
    return words, positions


def _assign_tokens_to_words(text: str, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[str, list[int]]]:
    """Yields each word of a text that has its own token, and the indices of its tokens. spans: characters of tokens."""
    free = list(range(len(spans)))
    for start, stop in find_word_spans(text):
        tokens = [i for i in free if spans[i][0] < stop and spans[i][1] > start]
        free = [i for i in free if i not in tokens]
        if tokens:
            yield printable(text[start:stop]), tokens


def remove_tokens(
    tokens_T: TokenIds, segments_T: TokenIds | None, positions: Sequence[int], token_if_empty: int
) -> tuple[TokenIds, TokenIds | None]:
    """Returns a row and its segments without the tokens at some positions.

    token_if_empty: the only token of a row that has lost all others.
    """
    if len(positions) == len(tokens_T):
        return np.array([token_if_empty]), None if segments_T is None else segments_T[:1]
    return np.delete(tokens_T, positions), None if segments_T is None else np.delete(segments_T, positions)


@torch.no_grad()
def score_without_each_word(
    score: Callable[[Batch], Tensor], single_row_batch: Batch, positions: Sequence[Sequence[int]], token_if_empty: int
) -> Floats:
    """Computes the score (W) of a row without each word.

    positions: of the tokens of each word. token_if_empty: as in `remove_tokens`.
    """
    tokens_T = single_row_batch.tokens_BT[0].cpu().numpy()
    segments_T = None if single_row_batch.segments_BT is None else single_row_batch.segments_BT[0].cpu().numpy()
    rows = [remove_tokens(tokens_T, segments_T, of_word, token_if_empty) for of_word in positions]
    scores = [np.zeros(0)]
    at_once = max(1, BATCH_POSITIONS // len(tokens_T))
    for chosen in (rows[first : first + at_once] for first in range(0, len(rows), at_once)):
        tokens_BT, keep_BT = pad_right_with_keep_mask([tokens for tokens, _ in chosen], token_if_empty)
        segments = [segments for _, segments in chosen if segments is not None]
        part = Batch(
            tokens_BT, keep_BT=keep_BT, segments_BT=pad_right_with_keep_mask(segments, 0)[0] if segments else None
        )
        scores.append(score(part.to(single_row_batch.tokens_BT.device)).double().cpu().numpy())
    return np.concatenate(scores)


def compute_integrated_gradients(
    score: Callable[[Batch], Tensor], embedding: nn.Module, single_row_batch: Batch, steps: int = PATH_STEPS
) -> Floats:
    """Computes the share of each token of a row in its score (T) (Sundararajan, Taly and Yan 2017, equation 1).

        share of t = sum over d of  x_td  integral from 0 to 1 of  dF(a x) / dx_td  da

    F is the score as a function of the token embeddings x, the baseline the zero vector. The integral is the mean of
    the gradients at the midpoints of `steps` equal parts. The shares sum to F(x) - F(0), up to the error of that mean.
    """
    tokens_BT, T = single_row_batch.tokens_BT, single_row_batch.tokens_BT.shape[1]
    shares_T = np.zeros(T)
    at_once = max(1, BATCH_POSITIONS // T)
    points_M = (torch.arange(steps, device=tokens_BT.device) + 0.5) / steps
    for points_B in torch.split(points_M, at_once):
        on_path: list[tuple[Tensor, Tensor]] = []

        def scale(module: nn.Module, inputs: Any, x_BTD: Tensor, points_B: Tensor = points_B) -> Tensor:
            x_BTD = x_BTD.detach()
            scaled_BTD = (x_BTD * points_B[:, None, None].to(x_BTD.dtype)).requires_grad_()
            on_path.append((x_BTD, scaled_BTD))  # noqa: B023 - called within this turn
            return scaled_BTD

        segments_BT = (
            None if single_row_batch.segments_BT is None else single_row_batch.segments_BT.expand(len(points_B), T)
        )
        # cuDNN's recurrent kernels have no gradient in evaluation mode.
        without_cudnn = torch.backends.cudnn.flags(enabled=False)
        with embedding.register_forward_hook(scale), torch.enable_grad(), without_cudnn:
            total = score(Batch(tokens_BT.expand(len(points_B), T), segments_BT=segments_BT)).sum()
            grads = torch.autograd.grad(total, [scaled_BTD for _, scaled_BTD in on_path])
        for (x_BTD, _), grad_BTD in zip(on_path, grads, strict=True):
            shares_T += (x_BTD * grad_BTD).sum((0, 2)).double().cpu().numpy() / steps
    return shares_T


def compute_attention_rollout(weights_LNTS: NDArray[np.float32]) -> Floats:
    """Computes how much of each position's state comes from each input, as far as attention shows (T, S).

        R = A_L ... A_1,  A_l = (mean over heads of layer l's weights + I) / 2

    where I is the residual connection (Abnar and Zuidema 2020, Quantifying Attention Flow in Transformers). Rows sum to
    one.
    """
    rollout_TS = np.eye(weights_LNTS.shape[-1])
    for weights_NTS in weights_LNTS.astype(np.float64):
        rollout_TS = (weights_NTS.mean(0) + np.eye(len(rollout_TS))) / 2 @ rollout_TS
    return rollout_TS


def _compute_rollout_to_pooled_vector(model: Classifier, attention: TextAttention) -> Floats | None:
    """Computes the rollout (T) from inputs to the pooled vector; None without self-attention, and for max pooling."""
    weights = {part.kind: part.weights_LNTS for part in attention.parts}
    if "self" not in weights or model.pool is None:
        return None
    rollout_TS, n = compute_attention_rollout(weights["self"]), weights["self"].shape[-1]
    if model.pool.kind == "max":
        return None
    pooled = {"first": np.eye(n)[0], "last": np.eye(n)[-1], "mean": np.full(n, 1 / n)}
    if model.pool.kind == "attention":
        pooled["attention"] = weights["pooling"][0, 0, 0].astype(np.float64)
    rollout_T: Floats = pooled[model.pool.kind] @ rollout_TS
    return rollout_T
