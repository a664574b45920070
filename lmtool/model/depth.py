"""How far above the embeddings each parameter of a model stands."""

from collections.abc import Iterable, Sequence

from torch import nn
from torch.nn import Parameter

from lmtool.model.averaging import AveragingModel
from lmtool.model.bidirectional import BidirectionalModel
from lmtool.model.classifier import Classifier
from lmtool.model.recurrent import RecurrentDecoder
from lmtool.model.seq2seq import RecurrentEncoderDecoder
from lmtool.model.stack import Stack
from lmtool.model.transformer import TransformerDecoder, TransformerEncoder, TransformerEncoderDecoder

Part = nn.Module | None


def depths(model: nn.Module) -> dict[Parameter, int]:
    """0 for embeddings and positions, 1 to L for the layers from the bottom up, L + 1 for heads.

    The layers of a decoder stand above those of its encoder. A matrix that is embedding and head is an embedding.
    """
    body = model.body if isinstance(model, Classifier) else model
    parts = _parts(body)
    found = dict.fromkeys(model.parameters(), len(parts))
    for depth, group in enumerate(parts):
        found |= {p: depth for part in group if part is not None for p in part.parameters()}
    return found


def _parts(body: nn.Module) -> list[Sequence[Part]]:
    """What stands at each depth, heads left out."""
    match body:
        case TransformerDecoder() | TransformerEncoder():
            return [(body.inputs, body.stack.position), *_layers(body.stack)]
        case TransformerEncoderDecoder():
            below = (body.inputs, body.encoder.position, body.decoder.position)
            return [below, *_layers(body.encoder), *_layers(body.decoder)]
        case RecurrentDecoder():
            return [(body.embedding,), *_with(_modules(body.rnn.cells), body.attention, body.join)]
        case BidirectionalModel():
            pairs = zip(_modules(body.forth.cells), _modules(body.back.cells), strict=True)
            return [(body.embedding,), *pairs]
        case RecurrentEncoderDecoder():
            encoder = _with(_modules(body.encoder.forth), body.encoder.bridge)
            if body.encoder.back is not None:
                encoder = [(*group, b) for group, b in zip(encoder, _modules(body.encoder.back), strict=True)]
            decoder = _with(_modules(body.rnn.cells), body.attention, body.join, body.feed)
            return [(body.embedding,), *encoder, *decoder]
        case AveragingModel():
            return [(body.embedding,), *((layer,) for layer in _modules(body.dense))]
    return [(body,)]


def _layers(stack: Stack) -> list[Sequence[Part]]:
    sublayers, n = _modules(stack.sublayers), stack.per_layer
    layers: list[Sequence[Part]] = [sublayers[i : i + n] for i in range(0, len(sublayers), n)]
    return [*layers[:-1], (*layers[-1], stack.norm)]


def _with(layers: Sequence[nn.Module], *above: Part) -> list[Sequence[Part]]:
    """Each layer alone, and what stands above them with the last one."""
    return [*((layer,) for layer in layers[:-1]), (layers[-1], *above)]


def _modules(found: Iterable[nn.Module]) -> list[nn.Module]:
    return list(found)
