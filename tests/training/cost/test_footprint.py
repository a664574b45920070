"""The traced memory of training, against tensors that are there."""

from collections.abc import Callable

import pytest
import torch
from pydantic import TypeAdapter

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.size import estimate_persistent_memory
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Model
from lmtool.training.cost import footprint as module
from lmtool.training.cost.devices import DeviceGroup
from lmtool.training.cost.footprint import BatchToTrace, MemoryEstimate, estimate_training_memory_per_device

T, V = 24, 40
DECODER = {"kind": "transformer", "n_layers": 3, "d_model": 16, "n_heads": 4, "context": T}
RECURRENT = {"kind": "recurrent", "n_layers": 2, "d_model": 16, "context": T}
SPECS = {
    "gpt": DECODER,
    "dropout": DECODER | {"dropout": 0.1, "ffn_dropout": 0.1},
    "llama": DECODER | {"position": {"kind": "rotary"}, "activation": "swiglu", "norm": {"kind": "rms"}},
    "n-grams": DECODER | {"ngram_embedding": {"entries": 30}},
    "t5": DECODER | {"shape": "encoder-decoder", "position": {"kind": "relative"}},
    "prefix": DECODER | {"shape": "prefix"},
    "elman": RECURRENT | {"cell": "rnn"},
    "gru": RECURRENT | {"cell": "gru"},
    "lstm": RECURRENT | {"cell": "lstm"},
    "seq2seq": RECURRENT | {"shape": "encoder-decoder", "attention": {"score": "additive"}},
    "elmo": RECURRENT | {"shape": "bidirectional"},
}


def spec(name: str, **changes: object) -> Model:
    return TypeAdapter(Model).validate_python(SPECS[name] | changes)


def rows_of(model: Model, *, accumulates: bool = False) -> Callable[[int], BatchToTrace]:
    def rows(n: int) -> BatchToTrace:
        tokens = torch.zeros(n, T, dtype=torch.int64)
        has_source = model.reads == "source" and not model.shares_row
        prefix_B = torch.full((n,), T // 2) if model.shares_row else None
        return BatchToTrace(
            Batch(tokens, source_BS=tokens if has_source else None, prefix_B=prefix_B), 1.0, accumulates
        )

    return rows


def traced(
    model: Model, n: int = 3, *, precision: str = "float32", on_gpu: bool = False, **more: bool
) -> MemoryEstimate:
    return estimated(model, rows_of(model, **more), n, DeviceGroup(precision, on_gpu))


def estimated(model: Model, rows: Callable[[int], BatchToTrace], n: int, devices: DeviceGroup) -> MemoryEstimate:
    recipe = load("tiny").recipe.model_copy(update={"model": model})
    return estimate_training_memory_per_device(model, V, estimate_persistent_memory(recipe, V), rows, n, devices)


def kept(model: Model, n: int, precision: str) -> tuple[int, int]:
    """Bytes that a forward pass of real tensors saves for its backward pass, and of its result."""
    lm = build(model, V).train()
    own = {tensor.untyped_storage().data_ptr() for tensor in (*lm.parameters(), *lm.buffers())}
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16"),
    ):
        hidden = lm(rows_of(model)(n).batch).hidden_BTD
    return sum(storage.nbytes() for storage in saved.values()), hidden.untyped_storage().nbytes()


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, "float32") for name in ("gpt", "dropout", "llama", "n-grams", "prefix", "elman", "seq2seq")),
        ("lstm", "bfloat16"),
    ],
)
def test_activations_are_those_that_a_backward_pass_needs(name: str, precision: str) -> None:
    """Those that the kernels in C save, where a CPU trains with them, as with dropout and in llama."""
    saved, result = kept(spec(name), 3, precision)
    found = traced(spec(name), precision=precision).activations
    # beside them the input tokens, which are not activations, and masks and positions that live as long
    assert saved - 3 * T * 8 <= found + 2 * 3 * T * 8
    assert found <= 1.05 * saved + 2 * result + 8 * T * T


def test_padding_and_a_window_are_traced_without_values() -> None:
    """As without padding, which is at the end of a row."""
    model = spec("t5", pattern={"kind": "window", "size": 3})
    tokens, keep = torch.zeros(3, T, dtype=torch.int64), torch.ones(3, T, dtype=torch.bool)
    padded = BatchToTrace(Batch(tokens, keep_BT=keep, source_BS=tokens, source_keep_BS=keep), 1.0, False)
    found = estimated(model, lambda n: padded, 2, DeviceGroup("float32", True))
    assert 0 < found.activations < 2 * traced(model, on_gpu=True).activations


@pytest.mark.parametrize("name", ["lstm", "elmo"])
def test_states_of_another_model_are_activations(name: str) -> None:
    without, with_states = (
        traced(spec(name, features=features)).activations
        for features in (None, {"run": "other", "width": 32, "mixed_layers": 3})
    )
    # the mix keeps the states of each layer, in float32
    assert with_states - without >= 3 * (3 * T * 32) * 4


def test_the_peak_is_that_of_all_parts_together() -> None:
    found = traced(spec("gpt"))
    parts = found.weights + found.gradients + found.moments + found.activations + found.logits
    assert found.weights + found.moments + found.activations + found.logits <= found.peak <= 1.5 * parts
    assert (found.gradients, found.weights) == (4 * n_parameters("gpt"), 4 * n_parameters("gpt"))


def n_parameters(name: str, **changes: object) -> int:
    return sum(parameter.numel() for parameter in build(spec(name, **changes), V).parameters())


def test_accumulated_gradients_are_there_from_the_start() -> None:
    once, again = (traced(spec("gpt", n_layers=2), 8, accumulates=accumulates).peak for accumulates in (False, True))
    # of a large batch the peak is before the first gradient; later a second one is beside the first for a while
    gradients = 4 * n_parameters("gpt", n_layers=2)
    assert gradients <= again - once <= 1.3 * gradients


@pytest.mark.parametrize("name", ["gru", "t5"])
def test_deep_models_are_extrapolated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = spec(name, n_layers=4)
    whole = traced(deep)
    monkeypatch.setattr(module, "MAX_TRACED_LAYERS", 2)
    assert traced(deep).activations == whole.activations
    assert traced(deep).peak == pytest.approx(whole.peak, rel=0.02)


def test_many_rows_are_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rows_per_chunk", lambda device, vocab_size: 8)
    monkeypatch.setattr("lmtool.objective.cross_entropy.rows_per_chunk", lambda device, vocab_size: 8)
    monkeypatch.setattr(module, "MAX_TRACED_CHUNKS", 100)
    whole = traced(spec("gpt"), 8)
    monkeypatch.setattr(module, "MAX_TRACED_CHUNKS", 12)
    found = traced(spec("gpt"), 8)
    assert found.activations == whole.activations
    assert found.peak == pytest.approx(whole.peak, rel=0.02)


def test_gradients_of_an_ngram_table_are_those_of_the_rows_read_on_one_cpu() -> None:
    """Elsewhere they are those of the whole table."""
    entries = 100_000
    model = spec("n-grams", ngram_embedding={"entries": entries})
    table = 4 * entries * model.d_model
    here, gpu = traced(model), traced(model, on_gpu=True)
    assert here.gradients == traced(spec("n-grams")).gradients
    assert here.weights > table > here.peak - here.weights - here.moments
    assert gpu.gradients - here.gradients == table
    assert gpu.peak > here.peak + table / 2


def test_a_gpu_has_no_attention_weights() -> None:
    """Plain products keep the weights of all pairs twice: as they are, and after dropout."""
    cpu, gpu = (traced(spec("gpt", dropout=0.1), on_gpu=on_gpu).activations for on_gpu in (False, True))
    assert cpu - gpu > 3 * 3 * 4 * T * T * 4


def test_a_model_that_no_machine_holds_is_traced() -> None:
    large = spec("gpt", d_model=16384, n_heads=128, n_layers=100, context=T)
    assert traced(large, 2, precision="bfloat16").activations > 100 * 2 * T * 16384 * 4
