"""Hand-built models and tokenizers. Of the models the next-token distribution is given by a table or by the history.

Shapes: B rows, T positions, S positions so far, V vocabulary. Hidden states are the logits themselves.
"""

from dataclasses import replace

import torch

from lmtool.model.language_model import DecodeState, KeyValueCache, LanguageModel, Output
from lmtool.tokenization.decoder import ByteDecoder, WordDecoder
from lmtool.tokenization.inner import SpecialTokenRoles


class HistoryModel(LanguageModel):
    """Random logits for each history, which differ strongly when one token of it differs.

    Keys and values both hold the ids read so far, so any error in a state changes everything after. `read` counts the
    positions processed.
    """

    def __init__(self, vocab_size=11, context=None):
        super().__init__(vocab_size, context, "a table of histories")
        self.read = 0
        self.register_buffer("place", torch.zeros(()))

    def logits_after(self, ids):
        key = 0
        for token in ids:
            key = (key * 1000003 + token + 1) % (2**61 - 1)
        return torch.randn(self.vocab_size, generator=torch.Generator().manual_seed(key)) * 2

    def logits_of_row(self, row, ids):
        return self.logits_after(ids)

    def forward(self, batch):
        return Output(self.forward_incremental(batch.tokens_BT, self.initial_state(batch))[0])

    def logits(self, hidden):
        return hidden

    def initial_state(self, batch):
        nothing = torch.zeros(len(batch.tokens_BT), 1, 0, 1)
        return DecodeState(0, None, (KeyValueCache(nothing, nothing), ()))

    def forward_incremental(self, tokens_BT, state):
        assert torch.equal(*state.layers[0])
        assert state.rows_per_line > 1 or state.layers[0].k_BNSH.shape[2] == state.length
        self.read += tokens_BT.numel()
        T = tokens_BT.shape[1]
        after = state.reserve_positions(T)
        new_GNQH = after.rows_to_lines(tokens_BT)[:, None, :, None].float()
        now = state.layers[0].append(new_GNQH, new_GNQH)
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

    def __init__(self, table, context=None):
        super().__init__(len(table), context)
        self.logits_VV = torch.tensor(table).log()

    def logits_after(self, ids):
        return self.logits_VV[ids[-1]]


class SidesModel(HistoryModel):
    """Bidirectional: random logits for each position and all other tokens of the row."""

    reads = "both"

    def logits_of(self, ids):
        rows = []
        for place in range(len(ids)):
            others = [*ids[:place], -1, *ids[place + 1 :], place]
            rows.append(self.logits_after(others).tolist())
        return rows

    def forward(self, batch):
        self.read += batch.tokens_BT.numel()
        return Output(torch.tensor([self.logits_of(row) for row in batch.tokens_BT.tolist()]))


class AnswerModel(HistoryModel):
    """Reads a source, which it keeps as a state of fixed width, in front of the history; 99 ends it there."""

    reads = "source"

    def initial_state(self, batch):
        assert batch.source_BS is not None
        state = super().initial_state(batch)
        source_BS = batch.source_BS.float()
        kept = torch.nn.functional.pad(source_BS, (0, 40 - source_BS.shape[1]), value=99.0)
        return replace(state, layers=(state.layers[0], (kept,)))

    def forward_incremental(self, tokens_BT, state):
        self.sources = state.layers[1][0].int().tolist()
        hidden, after = super().forward_incremental(tokens_BT, state)
        return hidden, replace(after, layers=(after.layers[0], state.layers[1]))

    def logits_of_row(self, row, ids):
        source = [token for token in self.sources[row] if token != 99]
        return self.logits_after([*source, 99, *ids])


class PrefixModel(HistoryModel):
    """A prefix LM: its state holds the source like the tokens, so that it uses up context."""

    reads = "source"

    def initial_state(self, batch):
        assert batch.source_BS is not None
        state = super().initial_state(batch)
        if not batch.source_BS.shape[1]:
            return state
        ids_BNSH = batch.source_BS[:, None, :, None].float()
        return replace(state, length=batch.source_BS.shape[1], layers=(KeyValueCache(ids_BNSH, ids_BNSH.clone()), ()))


SPECIAL = 7


class ByteTokenizer:
    """Seven special tokens, then one for each byte."""

    kind = "bpe"
    bos_id, eos_id, mask_id, sep_id, cls_id = 1, 2, 4, 5, 6
    special_ids = frozenset(range(SPECIAL))
    roles = SpecialTokenRoles(0, 1, 2, 3, 4, 5, 6, (1,), frozenset({2}), (), special_ids)
    vocab_size = SPECIAL + 256

    def encode(self, text):
        return [SPECIAL + byte for byte in text.encode()]

    def find_unknown_parts(self, text):
        return []

    def display_token(self, token):
        return f"<{token}>" if token < SPECIAL else chr(token - SPECIAL)

    def make_stream_decoder(self, names=None):
        return ByteDecoder([b""] * SPECIAL + [bytes([i]) for i in range(256)])


class WordTokenizer(ByteTokenizer):
    words = ("once", "upon", "a", "time", ",", ".", "'")
    vocab_size = SPECIAL + len(words)

    def encode(self, text):
        return [SPECIAL + self.words.index(word) for word in text.split()]

    def make_stream_decoder(self, names=None):
        return WordDecoder([""] * SPECIAL + list(self.words))


class ScriptModel(HistoryModel):
    """Continues with a text of bytes, whatever the prompt, which begins with its number of tokens."""

    def __init__(self, script, vocab_size=ByteTokenizer.vocab_size, n_prompt=1, context=None):
        super().__init__(vocab_size, context)
        self.script = script
        self.n_prompt = n_prompt

    def logits_after(self, ids):
        logits = super().logits_after(ids)
        logits[self.script[len(ids) - self.n_prompt]] = 100.0
        return logits


class Repeating(HistoryModel):
    """A text of period 3, whatever came before; logits are finite, so that every token can be drawn."""

    def logits_after(self, ids):
        return 6.0 * torch.nn.functional.one_hot(torch.tensor((ids[-1] + 1) % 3), self.vocab_size).float()
