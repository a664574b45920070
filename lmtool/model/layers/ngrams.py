"""What is added to the embedding of a token by the tokens before it: of n-grams that end at it, of the one before it.

Shapes: B rows, T positions, C tokens before them, D model width, K entries, N tokens of a text.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.errors import RecipeError
from lmtool.recipe.spec.transformer import FrequentNgramTable

_UNUSED_KEY = torch.iinfo(torch.int64).max
"""The key of a table entry without an n-gram."""


class PrecedingTokensEmbedding(nn.Module, ABC):
    """Base of what is added to the embedding of each token by the tokens before it."""

    @abstractmethod
    def forward(self, tokens_BT: Tensor, positions_PT: Tensor, preceding_BC: Tensor | None = None) -> Tensor:
        """Returns what is added (B, T, D).

        Args:
            positions_PT: position of each token in its text, before whose beginning nothing is read.
            preceding_BC: the tokens before them, if any.
        """

    def embed_batch(self, batch: Batch, positions_PT: Tensor) -> Tensor:
        """Returns what is added (B, T, D) to all tokens of a batch; the tokens before them are beyond its padding."""
        if batch.keep_BT is None:
            return self.forward(batch.tokens_BT, positions_PT)
        # tokens are moved after the padding of their row, and back afterwards
        order_BT = batch.keep_BT.long().argsort(dim=1, stable=True)
        positions_BT = positions_PT.expand(len(order_BT), -1).gather(1, order_BT)
        x_BTD = self.forward(batch.tokens_BT.gather(1, order_BT), positions_BT)
        return x_BTD.gather(1, order_BT.argsort(1)[..., None].expand_as(x_BTD))


class GatedPreviousTokenEmbedding(PrecedingTokensEmbedding):
    """s sigmoid(w . x_t) x_(t-1), x being the embeddings of tokens (modded-nanogpt; nanochat, there of their first
    numbers only)."""

    def __init__(self, tokens: nn.Embedding, embedding_scale: float) -> None:
        super().__init__()
        # in a tuple, so that it is not registered here too
        self._tokens, self._embedding_scale = (tokens,), embedding_scale
        self.gate = nn.Linear(tokens.embedding_dim, 1, bias=False)
        self.scale = nn.Parameter(torch.empty(1))
        nn.init.zeros_(self.scale)

    def forward(self, tokens_BT: Tensor, positions_PT: Tensor, preceding_BC: Tensor | None = None) -> Tensor:
        text_BS = tokens_BT if preceding_BC is None else torch.cat((preceding_BC, tokens_BT), 1)
        T = tokens_BT.shape[1]
        text_BS = F.pad(text_BS, (T + 1 - text_BS.shape[1], 0))
        # not by the module, whose outputs are read and changed as those of the tokens themselves
        x_BSD = F.embedding(text_BS, self._tokens[0].weight) * self._embedding_scale
        gate_BT1 = self.scale * torch.sigmoid(self.gate(x_BSD)[:, 1:]) * (positions_PT > 0)[..., None]
        return gate_BT1 * x_BSD[:, :-1]


class FrequentNgramEmbedding(PrecedingTokensEmbedding):
    """The sum of the embeddings of the frequent n-grams of 2 to `max_n` tokens that end at each token.

    What a small model would have to compute from two or three tokens, it looks up (Huang et al. 2025, Over-Tokenized
    Transformer, there with hashed n-grams). Embeddings are initially zero, and for n-grams that `select_ngrams_` has
    not selected.
    """

    keys_K: Tensor
    """The n-gram of each entry as one number, ascending."""

    def __init__(self, spec: FrequentNgramTable, width: int, vocab_size: int) -> None:
        """Raises RecipeError for a vocabulary so large that an n-gram does not fit in 63 bits."""
        super().__init__()
        self.max_n, self.min_count, self._base = spec.longest, spec.min_count, vocab_size + 1
        if self._base**spec.longest >= _UNUSED_KEY:
            what = f"model.ngram_embedding.longest: {spec.longest} is too long for a vocabulary of {vocab_size:,}"
            raise RecipeError([f"{what}: at most {int(63 / (self._base - 1).bit_length())}"])
        self.weight = nn.Parameter(torch.empty(spec.entries, width))
        nn.init.zeros_(self.weight)
        self.register_buffer("keys_K", torch.full((spec.entries,), _UNUSED_KEY))

    def forward(self, tokens_BT: Tensor, positions_PT: Tensor, preceding_BC: Tensor | None = None) -> Tensor:
        text_BS = tokens_BT if preceding_BC is None else torch.cat((preceding_BC, tokens_BT), 1)
        # cut or padded to the tokens that n-grams can reach
        text_BS = F.pad(text_BS, (tokens_BT.shape[1] + self.max_n - 1 - text_BS.shape[1], 0))
        keys_K = self.keys_K.to(tokens_BT.device)  # the body may be on the meta device while a head learns its shapes
        last = len(keys_K) - 1
        # gradients of all rows are too many for a CPU core; several processes exchange them, and GPUs are fast enough
        is_sparse = self.weight.device.type == "cpu" and not (dist.is_available() and dist.is_initialized())
        x_BTD: Tensor | None = None
        key_BS = text_BS + 1
        for n in range(2, self.max_n + 1):
            # the key of n tokens from that of the first n - 1
            key_BS = key_BS[:, :-1] * self._base + text_BS[:, n - 1 :] + 1
            key_BT = key_BS[:, key_BS.shape[1] - tokens_BT.shape[1] :].contiguous()
            entry_BT = torch.searchsorted(keys_K, key_BT).clamp(max=last)
            known_BT = (keys_K[entry_BT] == key_BT) & (positions_PT >= n - 1)
            vector_BTD = F.embedding(torch.where(known_BT, entry_BT, 0), self.weight, sparse=is_sparse)
            vector_BTD = vector_BTD * known_BT[..., None]
            x_BTD = vector_BTD if x_BTD is None else x_BTD + vector_BTD
        assert x_BTD is not None
        return x_BTD

    @torch.no_grad()
    def select_ngrams_(self, tokens_N: Tensor) -> None:
        """Gives entries to the n-grams that occur at least `min_count` times in a text, the most frequent first."""
        keys, counts = [], []
        key_N = tokens_N + 1
        for n in range(2, self.max_n + 1):
            key_N = key_N[:-1] * self._base + tokens_N[n - 1 :] + 1
            distinct, times = torch.unique(key_N, return_counts=True)
            keys.append(distinct[times >= self.min_count])
            counts.append(times[times >= self.min_count])
        key, count = torch.cat(keys), torch.cat(counts)
        # stable: of equally frequent n-grams the shorter first, and then the smaller key
        chosen = key[count.argsort(descending=True, stable=True)[: len(self.keys_K)]].sort().values
        self.keys_K.fill_(_UNUSED_KEY)
        self.keys_K[: len(chosen)] = chosen


def find_ngram_embeddings(model: nn.Module) -> list[FrequentNgramEmbedding]:
    """Returns all embeddings of n-grams in a model."""
    return [module for module in model.modules() if isinstance(module, FrequentNgramEmbedding)]
