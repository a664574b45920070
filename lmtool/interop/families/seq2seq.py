"""Encoder-decoders of Transformers, whose decoder predicts tokens."""

from abc import abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

from lmtool.interop.families.config import Config
from lmtool.interop.families.family import Described, Family
from lmtool.interop.families.layouts import Weight
from lmtool.interop.families.modules import Modules, layers, parameters_of
from lmtool.printable import plain
from lmtool.recipe.spec.objective import AnyObjective
from lmtool.recipe.spec.transformer import Transformer

UNSUPPORTED = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForCausalLM")
"""Ends of the names of architectures with heads that no recipe of an encoder-decoder has."""
OTHER_HEADS = ("classification_head.", "qa_outputs.")
"""Beginnings of the names of their tensors."""


class EncoderDecoder(Family):
    """An encoder-decoder whose decoder predicts tokens.

    architecture: its class. stack: their name of the encoder and decoder, with {} for which.
    """

    shape = "encoder-decoder"
    architecture: ClassVar[str]
    stack: ClassVar[str]

    def describe(self, config: Config, names: Collection[str]) -> Described:
        architecture = config.architecture()
        others = [f"tensor {name}" for name in sorted(names) if name.startswith(OTHER_HEADS)]
        if architecture.endswith(UNSUPPORTED):
            others.insert(0, architecture)
        if others:
            raise config.refusal(f"a recipe of an encoder-decoder has no head as {plain(others[0])[:60]}")
        for stack in ("encoder", "decoder"):
            if not any(name.startswith(f"{self.stack.format(stack)}.") for name in names):
                raise config.refusal(f"it has no {stack}")
        config.expect("is_encoder_decoder", True)
        config.expect("is_decoder", False)
        return Described({"shape": "encoder-decoder", **self._model(config, names)}, {"kind": "seq2seq"})

    @abstractmethod
    def _model(self, config: Config, names: Collection[str]) -> dict[str, Any]:
        """The recipe's `model`, without its shape."""

    def _architecture(self, model: Transformer, objective: AnyObjective) -> str:
        return self.architecture

    def _config(self, model: Transformer, objective: AnyObjective) -> dict[str, Any]:
        return {"is_encoder_decoder": True, "pad_token_id": None, "d_model": model.d_model}

    def _layers(self, model: Transformer, layer: str, encoder: Modules, decoder: Modules) -> list[Weight]:
        """layer: their name of a layer in a stack. encoder, decoder: the modules of a layer."""
        modules: dict[str, tuple[str, ...]] = {}
        for stack, parts in (("encoder", encoder), ("decoder", decoder)):
            modules |= layers(model, stack, f"{self.stack.format(stack)}.{layer}", parts)
        return [*parameters_of(model, modules)]
