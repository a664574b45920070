"""Models read in pieces, with the state of each in the next."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

from lmtool.model import DecodeState, LanguageModel
from tests.support import tiny
from tests.support.tiny import FAMILIES

EXACT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9}
quick = settings(max_examples=50 if settings.get_current_profile_name() == "thorough" else 4, deadline=None)
"""A few examples for each family, of which there are many."""

Texts = Sequence[Sequence[int]]


@cache
def model_of(family: str) -> LanguageModel:
    """A model with ordinary parameters, in whichever mode it is first asked for."""
    with torch.inference_mode(False):
        return tiny.model(**FAMILIES[family])


def full(model: LanguageModel, tokens_BT: Tensor, texts: Texts | None = None) -> Tensor:
    return tiny.read(model, tokens_BT, texts).detach()


def read(model: LanguageModel, tokens_BT: Tensor, cuts: list[int], state: DecodeState | None = None) -> Any:
    """Hidden states of all positions, computed in chunks that end at `cuts`, and the final state."""
    state = tiny.start(model, len(tokens_BT)) if state is None else state
    hidden = []
    for start, stop in zip([0, *cuts], [*cuts, tokens_BT.shape[1]], strict=True):
        chunk, state = model.forward_incremental(tokens_BT[:, start:stop], state)
        hidden.append(chunk.detach())
    return torch.cat(hidden, 1), state


@st.composite
def chunkings(draw: st.DrawFn, longest: int = 18) -> tuple[int, list[int]]:
    """A length, and where it is cut."""
    length = draw(st.integers(1, longest))
    return length, sorted(draw(st.sets(st.integers(1, length - 1)))) if length > 1 else []


def search(model: LanguageModel, parents: Sequence[Sequence[int]], width: int, lengths: Sequence[int]) -> DecodeState:
    """`width` rows for each of the texts of `lengths`, reordered as given by `parents`.

    At each step each row is compared with the row alone.
    """
    texts = tiny.sources(len(lengths), seed=5)
    beginnings = [tiny.tokens(1, length, seed=length) for length in lengths]
    states = [
        read(model, tokens, [], tiny.start(model, 1, [text]))[1].select_rows([0] * width)
        for tokens, text in zip(beginnings, texts, strict=True)
    ]
    state = DecodeState.join_rows(states)
    rows = [(text, tokens[0].tolist()) for text, tokens in zip(texts, beginnings, strict=True) for _ in range(width)]
    for step, chosen in enumerate(parents):
        new = tiny.tokens(len(rows), 1, seed=100 + step)
        hidden, state = model.forward_incremental(new, state)
        rows = [(text, own + more) for (text, own), more in zip(rows, new.tolist(), strict=True)]
        for (text, own), last in zip(rows, hidden[:, -1], strict=True):
            torch.testing.assert_close(last, full(model, torch.tensor([own]), [text])[0, -1], **EXACT)
        kept = [line * width + parent for line in range(len(lengths)) for parent in chosen]
        state, rows = state.select_rows(kept).trim_common_padding(), [rows[i] for i in kept]
    return state
