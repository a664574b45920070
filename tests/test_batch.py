"""Batch and Mask."""

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lmtool.batch import Batch, Mask
from tests.reference.transformer import may_see

CPU = torch.device("cpu")


@st.composite
def masks(draw: st.DrawFn) -> tuple[dict[str, Any], int, int, int]:
    """Fields of a mask, the number of rows, of queries and of keys."""
    rows, n_keys = draw(st.integers(1, 3)), draw(st.integers(1, 7))
    n_queries = draw(st.integers(1, n_keys))

    def per_row(element: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(element, min_size=rows, max_size=rows)

    def per_key(element: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return per_row(st.lists(element, min_size=n_keys, max_size=n_keys))

    fields = {
        "causal": draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 8)),
        "prefix_B": draw(st.none() | per_row(st.integers(0, n_keys))),
        "keep_BS": draw(st.none() | per_key(st.booleans())),
        "documents_BS": draw(st.none() | per_key(st.integers(0, 2))),
    }
    return fields, rows, n_queries, n_keys


def mask_of(fields: dict[str, Any]) -> Mask:
    tensors: dict[str, Any] = {name: torch.tensor(value) for name, value in fields.items() if isinstance(value, list)}
    return Mask(**{**fields, **tensors})


@given(masks())
def test_allowed_equals_three_loops(drawn: tuple[dict[str, Any], int, int, int]) -> None:
    fields, rows, n_queries, n_keys = drawn
    allowed = mask_of(fields).to_tensor(n_queries, n_keys, CPU)
    has_rows = any(fields[name] is not None for name in ("prefix_B", "keep_BS", "documents_BS"))
    assert allowed.shape in ((rows, n_queries, n_keys), (1, n_queries, n_keys))
    assert has_rows or len(allowed) == 1
    allowed = allowed.expand(rows, -1, -1)
    for row in range(rows):
        of_row = {name: fields[name] and fields[name][row] for name in ("prefix_B", "keep_BS", "documents_BS")}
        own = {"prefix": of_row["prefix_B"] or 0, "keep": of_row["keep_BS"], "documents": of_row["documents_BS"]}
        for i in range(n_queries):
            query = n_keys - n_queries + i
            seen = [
                may_see(query, key, causal=fields["causal"], window=fields["window"], **own) for key in range(n_keys)
            ]
            if not any(seen):
                seen[query] = True
            assert allowed[row, i].tolist() == seen


@given(masks())
def test_where_documents_begin_equals_a_loop(drawn: tuple[dict[str, Any], int, int, int]) -> None:
    """At the first text of each document but the first one of a row, whatever padding stands between."""
    fields, rows, _, n_keys = drawn
    documents, keep = fields["documents_BS"], fields["keep_BS"] or [[True] * n_keys] * rows
    starts_BS = mask_of(fields).document_starts_after_first_BS
    if documents is None:
        assert starts_BS is None
        return
    wanted = []
    for row, kept in zip(documents, keep, strict=True):
        last = None
        for document, is_text in zip(row, kept, strict=True):
            wanted.append(is_text and last is not None and document != last)
            last = document if is_text else last
    assert starts_BS is not None
    assert starts_BS.flatten().tolist() == wanted


NOTHING = {"causal": False, "window": None, "prefix_B": None, "keep_BS": None, "documents_BS": None}


@given(masks())
@example((NOTHING, 1, 2, 3))
@example(({**NOTHING, "causal": True}, 1, 2, 3))
def test_the_shortcuts_are_true_and_hold_where_nothing_else_is_given(
    drawn: tuple[dict[str, Any], int, int, int],
) -> None:
    fields, _, n_queries, n_keys = drawn
    mask, is_plain = mask_of(fields), {**fields, "causal": False} == NOTHING
    assert mask.allows_all == (is_plain and not fields["causal"])
    assert mask.is_only_causal == (is_plain and fields["causal"])
    if is_plain:
        lower = torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)
        wanted = lower if fields["causal"] else torch.ones_like(lower)
        assert torch.equal(mask.to_tensor(n_queries, n_keys, CPU), wanted[None])


def test_a_batch_moves_whole() -> None:
    tokens_BT = torch.zeros(2, 3, dtype=torch.int64)
    batch = Batch(tokens_BT, tokens_BT, keep_BT=tokens_BT == 0)
    there = batch.to(torch.device("meta"))
    assert there.documents_BT is None
    for tensor in (there.tokens_BT, there.targets_BT, there.keep_BT):
        assert tensor is not None
        assert tensor.device.type == "meta"


@pytest.mark.gpu
def test_a_pinned_batch_moves_to_the_gpu() -> None:
    tokens_BT = torch.arange(6).view(2, 3)
    batch = Batch(tokens_BT, tokens_BT, documents_BT=tokens_BT).pin()
    assert batch.tokens_BT.is_pinned()
    there = batch.to(torch.device("cuda"))
    assert torch.equal(there.tokens_BT.cpu(), tokens_BT)
    assert there.documents_BT is not None
    assert there.documents_BT.device.type == "cuda"
