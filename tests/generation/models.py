"""Hand-built models, whose next-token distribution is given by a table or by the whole history.

Shapes: B rows, T positions, S positions so far, V vocabulary. Hidden states are the logits themselves.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from lmtool.batch import Batch
from lmtool.model.language_model import DecodeState, HiddenOutput, KeyValueCache, LanguageModel


class HistoryModel(LanguageModel):
    """Random logits for each history, which differ strongly when one token of it differs.

    Keys and values both hold the ids read so far, so any error in a state changes everything after. `read` counts the
    positions processed.
    """

    def __init__(self, vocab_size: int = 11, context: int | None = None) -> None:
        super().__init__(vocab_size, context, "a table of histories")
        self.read = 0
        self.register_buffer("place", torch.zeros(()))

    def logits_after(self, ids: list[int]) -> torch.Tensor:
        key = 0
        for token in ids:
            key = (key * 1000003 + token + 1) % (2**61 - 1)
        return torch.randn(self.vocab_size, generator=torch.Generator().manual_seed(key)) * 2

    def logits_of_row(self, row: int, ids: list[int]) -> torch.Tensor:
        return self.logits_after(ids)

    def forward(self, batch: Batch) -> HiddenOutput:
        return HiddenOutput(self.forward_incremental(batch.tokens_BT, self.initial_state(batch))[0])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def initial_state(self, batch: Batch) -> DecodeState:
        nothing = torch.zeros(len(batch.tokens_BT), 1, 0, 1)
        return DecodeState(0, None, (KeyValueCache(nothing, nothing), ()))

    def forward_incremental(self, tokens_BT: torch.Tensor, state: DecodeState) -> tuple[torch.Tensor, DecodeState]:
        cache = state.layers[0]
        assert isinstance(cache, KeyValueCache)
        assert torch.equal(*cache)
        assert state.rows_per_line > 1 or cache.k_BNSH.shape[2] == state.length
        self.read += tokens_BT.numel()
        T = tokens_BT.shape[1]
        after = state.add_unfilled_positions(T)
        new_GNQH = after.rows_to_lines(tokens_BT)[:, None, :, None].float()
        now = cache.append(new_GNQH, new_GNQH)
        ids_BS = now.k_BNSH[:, 0, :, 0].int().repeat_interleave(state.rows_per_line, 0)
        if after.shared_lines is None:
            padding_B = torch.zeros(len(tokens_BT)) if state.padding_B is None else state.padding_B
            seen_BS = torch.arange(after.length) >= padding_B[:, None]
        else:
            seen_BS = after.shared_lines.seen_BS
        rows = [ids[seen].tolist() for ids, seen in zip(ids_BS, seen_BS, strict=True)]
        assert self.context is None or all(len(row) <= self.context for row in rows)
        hidden_BTV = torch.stack(
            [
                torch.stack([self.logits_of_row(number, row[: len(row) - T + 1 + i]) for i in range(T)])
                for number, row in enumerate(rows)
            ]
        )
        return hidden_BTV, replace(after, layers=(now, ()))


class TableModel(HistoryModel):
    """A Markov chain: probabilities of the next token given the last one, a row of the table."""

    def __init__(self, table: Sequence[Sequence[float]], context: int | None = None) -> None:
        super().__init__(len(table), context)
        self.logits_VV = torch.tensor(table).log()

    def logits_after(self, ids: list[int]) -> torch.Tensor:
        return self.logits_VV[ids[-1]]


class SidesModel(HistoryModel):
    """Bidirectional: random logits for each position and all other tokens of the row."""

    reads = "both"

    def logits_of(self, ids: list[int]) -> list[list[float]]:
        rows = []
        for place in range(len(ids)):
            others = [*ids[:place], -1, *ids[place + 1 :], place]
            rows.append(self.logits_after(others).tolist())
        return rows

    def forward(self, batch: Batch) -> HiddenOutput:
        self.read += batch.tokens_BT.numel()
        return HiddenOutput(torch.tensor([self.logits_of(row) for row in batch.tokens_BT.tolist()]))


class AnswerModel(HistoryModel):
    """Reads a source, which it keeps as a state of fixed width, in front of the history; 99 ends it there."""

    reads = "source"

    def initial_state(self, batch: Batch) -> DecodeState:
        assert batch.source_BS is not None
        state = super().initial_state(batch)
        source_BS = batch.source_BS.float()
        kept = torch.nn.functional.pad(source_BS, (0, 40 - source_BS.shape[1]), value=99.0)
        return replace(state, layers=(state.layers[0], (kept,)))

    def forward_incremental(self, tokens_BT: torch.Tensor, state: DecodeState) -> tuple[torch.Tensor, DecodeState]:
        self.sources = state.layers[1][0].int().tolist()
        hidden, after = super().forward_incremental(tokens_BT, state)
        return hidden, replace(after, layers=(after.layers[0], state.layers[1]))

    def logits_of_row(self, row: int, ids: list[int]) -> torch.Tensor:
        source = [token for token in self.sources[row] if token != 99]
        return self.logits_after([*source, 99, *ids])


class PrefixModel(HistoryModel):
    """A prefix LM: its state holds the source like the tokens, so that it uses up context."""

    reads = "source"

    def initial_state(self, batch: Batch) -> DecodeState:
        assert batch.source_BS is not None
        state = super().initial_state(batch)
        if not batch.source_BS.shape[1]:
            return state
        ids_BNSH = batch.source_BS[:, None, :, None].float()
        return replace(state, length=batch.source_BS.shape[1], layers=(KeyValueCache(ids_BNSH, ids_BNSH.clone()), ()))
