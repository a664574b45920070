"""The Transformers: decoder (GPT), prefix LM, encoder (BERT, ELECTRA), encoder-decoder (Vaswani et al. 2017, T5).

Shapes: B rows, T positions, S positions so far or of a source, D model width, V vocabulary; G cache lines of rows with
a common prefix, Q new positions of all rows of a line.
"""

from dataclasses import replace
from functools import reduce
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model.language_model import (
    HiddenOutput,
    LanguageModel,
    ModelWithoutLikelihood,
    ModelWithoutNextToken,
    ModelWrapper,
    ModulesByDepth,
    sum_auxiliary_losses,
)
from lmtool.model.layers import blocks
from lmtool.model.layers.blocks import InputEmbeddings
from lmtool.model.layers.ngrams import FrequentNgramEmbedding, GatedPreviousTokenEmbedding, PrecedingTokensEmbedding
from lmtool.model.layers.positions import max_positions
from lmtool.model.layers.stack import Stack
from lmtool.model.state import Caches, DecodeState, LayerState, RowTokens
from lmtool.recipe.spec.model import Reads
from lmtool.recipe.spec.objective import ReplacedTokens
from lmtool.recipe.spec.recipe import make_generator_spec
from lmtool.recipe.spec.transformer import Transformer


class TransformerModel(LanguageModel):
    """Base of all Transformers: input embeddings, a head, and one or two stacks. inputs: None for new embeddings."""

    def __init__(self, spec: Transformer, vocab_size: int, inputs: InputEmbeddings | None = None) -> None:
        shared = " shared" if spec.share_layers else ""
        super().__init__(vocab_size, spec.context, f"{spec.title}, {spec.n_layers} x {spec.d_model}{shared}")
        self.max_positions = max_positions(spec)
        self.inputs = InputEmbeddings(spec, vocab_size) if inputs is None else inputs
        self.ngrams = None
        if spec.ngram_embedding is not None:
            self.ngrams = FrequentNgramEmbedding(spec.ngram_embedding, spec.embedding_width or spec.d_model, vocab_size)
        self.smear = None
        if spec.smear:
            self.smear = GatedPreviousTokenEmbedding(self.inputs.tokens, self.inputs.scale)
            blocks.init_linears_and_embeddings_(self.smear, spec)
        self.head = blocks.LanguageModelHead(spec, vocab_size, self.inputs.tokens)

    def forward(self, batch: Batch) -> HiddenOutput:
        return self._run_stack(self.stacks()[0], batch)

    def logits(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.head(hidden))

    def head_parameters(self) -> tuple[Tensor, ...]:
        return self.head.used_parameters()

    def token_vectors(self) -> Tensor:
        return self.inputs.tokens.weight

    def hidden_states_by_layer_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], Tensor | None]:
        """Returns the layers of the stack; of two stacks those of the encoder, with the tokens as source."""
        layers: list[Tensor] = []
        output = self._run_stack(self.stacks()[0], batch, layers)
        return layers, output.auxiliary_B

    def input_embeddings(self, stack: Stack) -> InputEmbeddings:
        """Returns the input embeddings of a stack."""
        return self.inputs

    @property
    def context_embeddings(self) -> list[PrecedingTokensEmbedding]:
        """What is added to the embeddings of tokens by the tokens before them."""
        return [part for part in (self.ngrams, self.smear) if part is not None]

    def sum_preceding_tokens_embeddings(self, tokens_BT: Tensor, positions_PT: Tensor, preceding_BS: Tensor) -> Tensor:
        """Returns the sum of these (B, T, D), at least one, for tokens that follow others."""
        parts = self.context_embeddings
        added_BTD: Tensor = reduce(torch.add, (part(tokens_BT, positions_PT, preceding_BS) for part in parts))
        return added_BTD

    def stacks(self) -> list[Stack]:
        """Returns its stacks, encoder first."""
        return [module for module in self.children() if isinstance(module, Stack)]

    def _run_stack(
        self, stack: Stack, batch: Batch, hidden_states_by_layer: list[Tensor] | None = None, source_caches: Caches = ()
    ) -> HiddenOutput:
        """Returns the hidden states (B, T, D) of all tokens at once. For arguments see `Stack.forward`."""
        positions_PT = text_positions(batch)
        parts = self.context_embeddings
        added_BTD = reduce(torch.add, (part.embed_batch(batch, positions_PT) for part in parts)) if parts else None
        x_BTD = self.input_embeddings(stack)(batch.tokens_BT, positions_PT, batch.segments_BT, added_BTD)
        mask = replace(stack.mask, prefix_B=batch.prefix_B, keep_BS=batch.keep_BT, documents_BS=batch.documents_BT)
        mask = replace(mask, extra_mask_BQS=batch.extra_mask_BTT)
        return stack(x_BTD, positions_PT, mask, source_caches, batch.source_keep_BS, hidden_states_by_layer)[0]

    def _run_stack_incrementally(
        self, stack: Stack, tokens_BT: Tensor, state: DecodeState, prefix_B: Tensor | None = None
    ) -> tuple[Tensor, DecodeState]:
        """Implements `forward_incremental`.

        prefix_B: number of prefix positions of each row, which see each other.
        """
        after = state.add_unfilled_positions(tokens_BT.shape[1])
        positions_PS, keep_BS, extra_mask_BQS = after.key_positions_and_masks(tokens_BT.shape[1])
        mask = replace(
            stack.mask, prefix_B=prefix_B, keep_BS=keep_BS, extra_mask_BQS=extra_mask_BQS, width=after.rows_per_line
        )
        tokens_GQ = after.rows_to_lines(tokens_BT)
        positions_PQ = positions_PS[:, -tokens_GQ.shape[1] :]
        caches, added_GQD = state.layers, None
        history: tuple[RowTokens, ...] = ()
        if self.context_embeddings:
            *stack_caches, row_tokens = state.layers
            assert isinstance(row_tokens, RowTokens)
            caches, preceding_BS = tuple(stack_caches), row_tokens.tokens_BS
            positions_PT = after.lines_to_rows(positions_PQ.expand(len(tokens_GQ), -1))
            added_GQD = after.rows_to_lines(self.sum_preceding_tokens_embeddings(tokens_BT, positions_PT, preceding_BS))
            history = (RowTokens(torch.cat((preceding_BS, tokens_BT), 1)),)
        x_GQD = self.input_embeddings(stack)(tokens_GQ, positions_PQ, None, added_GQD)
        output, layers = stack(x_GQD, positions_PS, mask, caches, state.source_keep_BS)
        return after.lines_to_rows(output.hidden_BTD), replace(after, layers=(*layers, *history))

    def modules_by_depth(self) -> ModulesByDepth:
        stacks = self.stacks()
        inputs = dict.fromkeys(self.input_embeddings(stack) for stack in stacks)
        embeddings = (*inputs, self.ngrams, self.smear, *(stack.position for stack in stacks))
        return [embeddings, *(layer for stack in stacks for layer in stack.modules_by_depth())]


class TransformerDecoder(TransformerModel):
    """A causal Stack: GPT (Radford et al. 2018, 2019)."""

    def __init__(self, spec: Transformer, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.stack = Stack(spec, causal=True)

    def initial_state(self, batch: Batch) -> DecodeState:
        layers = self.stack.initial_state_per_sublayer(len(batch.tokens_BT))
        if self.context_embeddings:
            layers = (*layers, RowTokens(batch.tokens_BT.new_zeros(len(batch.tokens_BT), 0)))
        return DecodeState(0, None, layers)

    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        return self._run_stack_incrementally(self.stack, tokens_BT, state)


class TransformerDecoderWithoutCausalMask(ModelWithoutLikelihood, TransformerModel):
    """A decoder without its causal mask: each position sees the tokens that it and all others are to predict."""

    reads: Reads = "both"

    def __init__(self, spec: Transformer, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.stack = Stack(spec, causal=False)

    def no_next_token_error(self) -> UsageError:
        what = "a decoder without its causal mask has seen each token that it predicts, and no other"
        return UsageError(what, where="model.causal_mask", fix="name a run with the mask")


class TransformerPrefixLm(TransformerDecoder):
    """A decoder with bidirectional attention within a prefix of the row (Raffel et al. 2020; Dong et al. 2019)."""

    reads: Reads = "source"

    def initial_state(self, batch: Batch) -> DecodeState:
        """Returns the state after the prefix, `batch.source_BS`, whose padding is moved to the left."""
        state = super().initial_state(batch)
        source_BS, keep_BS = batch.source_BS, batch.source_keep_BS
        if source_BS is None or not source_BS.shape[1]:
            return state
        if keep_BS is not None and not keep_BS.all():
            # stable sort, False before True
            order_BS = keep_BS.long().argsort(dim=1, stable=True)
            source_BS = source_BS.gather(1, order_BS)
            state = DecodeState(0, (~keep_BS).sum(1), state.layers)
        prefix_B = torch.full((len(source_BS),), source_BS.shape[1], device=source_BS.device)
        _, state = self._run_stack_incrementally(self.stack, source_BS, state, prefix_B)
        return state


class TransformerEncoder(ModelWithoutNextToken, TransformerModel):
    """A bidirectional Stack: BERT (Devlin et al. 2019)."""

    reads: Reads = "both"

    def __init__(self, spec: Transformer, vocab_size: int, inputs: InputEmbeddings | None = None) -> None:
        super().__init__(spec, vocab_size, inputs)
        self.stack = Stack(spec, causal=False)
        self.pooler = nn.Linear(spec.d_model, spec.d_model) if spec.next_sentence_head else None
        self.next_sentence = nn.Linear(spec.d_model, 2) if spec.next_sentence_head else None
        for part in (self.pooler, self.next_sentence):
            if part is not None:
                blocks.init_linears_and_embeddings_(part, spec)
        self.span_boundary = blocks.SpanBoundaryHead(spec, vocab_size, self.head) if spec.span_boundary_head else None

    def next_sentence_logits(self, hidden_BTD: Tensor) -> Tensor:
        """Returns the scores (B, 2) of "does not follow" and "follows", from the first position.

        Raises ValueError when the recipe has no such head.
        """
        if self.pooler is None or self.next_sentence is None:
            raise ValueError("the model has no next_sentence_head")
        return cast(Tensor, self.next_sentence(torch.tanh(self.pooler(hidden_BTD[:, 0]))))

    def no_next_token_error(self) -> UsageError:
        what = "an encoder is bidirectional and has no next token to predict"
        return UsageError(what, fix="fill masks with --strategy mask-predict")


class TransformerEncoderDecoder(TransformerModel):
    """A bidirectional encoder Stack, and a causal decoder Stack with cross-attention (Vaswani et al. 2017).

    Both share the token embedding, and, without `separate_inputs`, learned position embeddings.
    """

    reads: Reads = "source"

    def __init__(self, spec: Transformer, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.encoder = Stack(spec, causal=False)
        self.decoder = Stack(spec, causal=True, add_cross_attention=True)
        self.target_inputs = InputEmbeddings(spec, vocab_size, self.inputs.tokens) if spec.separate_inputs else None

    def input_embeddings(self, stack: Stack) -> InputEmbeddings:
        return self.target_inputs if self.target_inputs is not None and stack is self.decoder else self.inputs

    def encode(self, batch: Batch) -> HiddenOutput:
        """Returns the hidden states (B, S, D) of the source. Raises ValueError when the batch has none."""
        if batch.source_BS is None:
            raise ValueError("a batch without a source")
        return self._run_stack(self.encoder, Batch(batch.source_BS, keep_BT=batch.source_keep_BS))

    def forward(self, batch: Batch) -> HiddenOutput:
        source = self.encode(batch)
        output = self._run_stack(
            self.decoder, batch, source_caches=self.decoder.project_source_per_sublayer(source.hidden_BTD)
        )
        return HiddenOutput(output.hidden_BTD, sum_auxiliary_losses((source.auxiliary_B, output.auxiliary_B)))

    def initial_state(self, batch: Batch) -> DecodeState:
        layers: tuple[LayerState, ...] = self.decoder.initial_state_per_sublayer(
            len(batch.tokens_BT), self.encode(batch).hidden_BTD
        )
        return DecodeState(0, None, layers, batch.source_keep_BS)

    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        return self._run_stack_incrementally(self.decoder, tokens_BT, state)


def text_positions(batch: Batch) -> Tensor:
    """Returns the position of each token in its row, or in its document when rows hold several (B, T).

    It is (1, T) where all rows agree. Padding is not counted, so positions do not depend on where a text starts.
    """
    if batch.positions_BT is not None:
        return batch.positions_BT
    if batch.keep_BT is None:
        index = torch.arange(batch.tokens_BT.shape[1], device=batch.tokens_BT.device)[None]
    else:
        index = batch.keep_BT.cumsum(1) - batch.keep_BT.long()
    if batch.documents_BT is None:
        return index
    first_BT = F.pad(batch.documents_BT[:, 1:] != batch.documents_BT[:, :-1], (1, 0), value=True)
    return index - torch.where(first_BT, index, 0).cummax(1).values


class ReplacedTokenDetectorWithGenerator(ModelWithoutLikelihood, ModelWrapper):
    """ELECTRA (Clark et al. 2020): an encoder that detects the tokens which a small generator has replaced.

    It consists of the discriminator, which is the body that is fine-tuned, a score of each of its states, and the
    generator.

    generator: a narrower encoder that fills masks, by default with the embeddings of the discriminator, which a dense
        layer maps to its width.
    """

    def __init__(self, body: TransformerEncoder, spec: ReplacedTokens, model: Transformer) -> None:
        super().__init__(body)
        small = make_generator_spec(model, spec)
        inputs = blocks.ElectraGeneratorInputEmbeddings(body.inputs, small) if spec.share_embeddings else None
        self.generator = TransformerEncoder(small, body.vocab_size, inputs)
        self.activation = blocks.GATE_ACTIVATIONS.get(model.activation, model.activation)
        self.dense = nn.Linear(model.d_model, model.d_model)
        self.detector = nn.Linear(model.d_model, 1)
        for part in (self.dense, self.detector):
            blocks.init_linears_and_embeddings_(part, model)

    def detection_logits(self, hidden_BTD: Tensor) -> Tensor:
        """Returns v' f(W h_t + c) + b at each position (B, T), whose sigmoid is p(token t was replaced)."""
        return cast(
            Tensor,
            self.detector(blocks.apply_plain_or_gated_activation(self.dense(hidden_BTD), self.activation))[..., 0],
        )

    def unused_head_parameters(self) -> list[nn.Parameter]:
        """Returns the parameters of the discriminator's heads for other objectives."""
        assert isinstance(self.body, TransformerEncoder)
        heads = (self.body.head, self.body.pooler, self.body.next_sentence, self.body.span_boundary)
        return [parameter for head in heads if head is not None for parameter in head.parameters()]

    def no_next_token_error(self) -> UsageError:
        what = "this model detects replaced tokens, and predicts none"
        return UsageError(what, fix="fine-tune it: lmtool finetune TABLE --from RUN")
