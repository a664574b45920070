"""ELECTRA: an encoder that detects the tokens that a small generator has replaced (Clark et al. 2020).

Shapes: B rows, T positions, D model width.
"""

from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model.language_model import Output, UnpredictiveModel, Wrapper
from lmtool.model.layers.parts import GATES, SharedInputs, activate, initialise
from lmtool.model.transformer import TransformerEncoder
from lmtool.recipe.spec.objective import ReplacedTokens
from lmtool.recipe.spec.recipe import generator_of
from lmtool.recipe.spec.transformer import Transformer


class ReplacedTokenDetector(UnpredictiveModel, Wrapper):
    """The discriminator, which is the body that is fine-tuned, a score for each of its states, and the generator.

    generator: a narrower encoder that fills masks, by default on the embeddings of the discriminator, which a dense
        layer maps to its width.
    """

    def __init__(self, body: TransformerEncoder, spec: ReplacedTokens, model: Transformer) -> None:
        super().__init__(body)
        small = generator_of(model, spec)
        inputs = SharedInputs(body.inputs, small) if spec.share_embeddings else None
        self.generator = TransformerEncoder(small, body.vocab_size, inputs)
        self.activation = GATES.get(model.activation, model.activation)
        self.dense = nn.Linear(model.d_model, model.d_model)
        self.detector = nn.Linear(model.d_model, 1)
        for part in (self.dense, self.detector):
            initialise(part, model)

    def forward(self, batch: Batch) -> Output:
        """The hidden states of the discriminator."""
        output: Output = self.body(batch)
        return output

    def detections(self, hidden_BTD: Tensor) -> Tensor:
        """v' f(W h_t + c) + b at each position (B, T), of which the sigmoid is p(token t was replaced)."""
        scores_BT1: Tensor = self.detector(activate(self.dense(hidden_BTD), self.activation))
        return scores_BT1[..., 0]

    def untrained(self) -> list[nn.Parameter]:
        """Heads of the discriminator for other objectives."""
        assert isinstance(self.body, TransformerEncoder)
        heads = (self.body.head, self.body.pooler, self.body.next_sentence)
        return [parameter for head in heads if head is not None for parameter in head.parameters()]

    def refusal(self) -> UsageError:
        what = "this model detects replaced tokens, and predicts none"
        return UsageError(what, fix="fine-tune it: lmtool finetune TABLE --from RUN")
