"""Processes that share weights, gradients and moments train as one process does."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtool.compute.device import CPU, ExecutionContext
from lmtool.compute.processes import World
from lmtool.compute.shards import ShardNewParameters, get_local_row_range, get_local_rows, is_sharded
from lmtool.errors import UsageError
from lmtool.interop.resolve import resolve_reference
from lmtool.model.size import estimate_min_training_bytes
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Tuning
from lmtool.runs import load as loading
from lmtool.runs.checkpoint import list_checkpoints, open_and_verify_checkpoint
from lmtool.runs.load import build_for_training, load_run, load_weights
from lmtool.training.plan import _must_shard, check_same_inputs_in_all_processes
from tests.compute.together import together
from tests.support import forks
from tests.support.errors import refuses
from tests.support.training import Work, metrics, write_table
from tests.training.sharded import RECIPES, SHORT, tuned


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """A folder with a text, a table, and each recipe as one process trains it."""
    work = Work(tmp_path_factory.mktemp("sharding"))
    rows = (f"the cat {i} {'ran home' if i % 2 else 'sat'},{'ab'[i % 2]}" for i in range(60))
    write_table(work.folder / "table.csv", rows)
    for name, overrides in RECIPES.items():
        work.pretrain(*SHORT, *overrides, name=name)
    tuned(work, name="lora")
    return work


def processes(work: Work, number: int, *sessions: str) -> None:
    """The sharded sessions in so many processes; slow tests start theirs by torchrun."""
    words = ["-W", "ignore", "-m", "tests.training.sharded", str(work.folder), str(number), *sessions]
    done = forks.run(words, imports=["torch._dynamo", "torch.distributed.fsdp"])
    assert done.returncode == 0, done.stderr[-8000:]


def assert_alike(found: Path, expected: Path) -> None:
    """The records of all steps, and the weights at the end.

    In bfloat16, as Muon orthogonalises in any case, a last bit is one of 256; there only the losses are near.
    """
    rough = "muon" in found.name or "bfloat16" in found.name
    ours, theirs = metrics(found), metrics(expected)
    assert [record["step"] for record in ours] == [record["step"] for record in theirs]
    for key in ("loss", "valid_loss", "grad_norm", "lr", "tokens"):
        near = (5e-3 if key == "grad_norm" else 5e-4) if rough else 1e-5
        assert [record[key] for record in ours] == pytest.approx([record[key] for record in theirs], abs=near), key
    last = max(path.name for path in (expected / "checkpoints").iterdir())
    weights, others = (open_and_verify_checkpoint(run / "checkpoints" / last).load_model() for run in (found, expected))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], rtol=0, atol=0.02 if rough else 2e-5)


@pytest.mark.system
def test_two_processes_train_as_one(place: Work) -> None:
    """Also with shares of unequal size, accumulated gradients, a clipped norm, Muon, and layers that are recomputed."""
    processes(place, 2, *RECIPES, "lora")
    for name in (*RECIPES, "lora"):
        assert_alike(place.run(f"sharded {name}"), place.run(name))
    samples = (place.run(f"{name}adamw") / "samples.jsonl" for name in ("", "sharded "))
    assert len({path.read_text() for path in samples}) == 1
    assert (place.run("sharded bfloat16") / "samples.jsonl").read_text().count("\n") == 2
    for name in RECIPES:
        saved = [checkpoint for _, checkpoint in list_checkpoints(place.run(f"sharded {name}") / "checkpoints")]
        assert [open_and_verify_checkpoint(checkpoint).n_shards for checkpoint in saved] == [2, 2]
    results = [(place.run(f"{name}lora") / "metrics.json").read_text() for name in ("", "sharded ")]
    assert len(results[0]) > 10
    for name in ("sharded adamw", "sharded muon", "muon", "lora"):
        assert_loaded_by_rows(place, name)
    model = load_run(str(place.run("sharded muon"))).model
    assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())


def assert_loaded_by_rows(place: Work, source: str) -> None:
    """Each process has its rows of the weights of a run, which it goes on with, or begins with under another head."""
    base = resolve_reference(str(place.run(source)))
    of_tables = resolve_reference(str(place.run("lora"))).recipe
    for labelled in (False, True):
        recipe = base.recipe.model_copy(update={"objective": of_tables.objective}) if labelled else base.recipe
        recipe = recipe.model_copy(update={"tuning": Tuning()})
        is_own = not labelled and source != "lora"

        def learned(
            shards: ShardNewParameters | None, recipe: Recipe = recipe, is_own: bool = is_own
        ) -> dict[str, torch.Tensor]:
            begun = None if is_own else base
            lm, _ = build_for_training(recipe, base.tokenizer, CPU, lambda lm: None, base=begun, shards=shards)
            if is_own:
                load_weights(lm, base.checkpoint)
            return dict(lm.named_parameters()) | dict(lm.named_buffers())

        whole = learned(None)
        for rank in range(3):
            for name, tensor in learned(ShardNewParameters(rank, 3)).items():
                own = whole[name][get_local_row_range(tensor)] if is_sharded(tensor) else whole[name]
                assert torch.equal(get_local_rows(tensor), own), name


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize(("precision", "apart"), [("float32", 1e-4), ("bfloat16", 2e-2)])
def test_two_gpus(place: Work, precision: str, apart: float) -> None:
    on_gpus = (*SHORT, "training.device=cuda", f"training.precision={precision}")
    settings = [word for key in (*on_gpus, "training.shard=full") for word in ("-s", key)]
    run = place.run(f"two GPUs {precision}")
    launched = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "lmtool", "pretrain"]
    launched += [str(place.text), "--recipe", str(place.recipe), "-o", str(run), *settings]
    done = subprocess.run(launched, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    place.pretrain(*on_gpus, name=f"one GPU {precision}")
    losses = [[record["loss"] for record in metrics(path)] for path in (run, place.run(f"one GPU {precision}"))]
    assert losses[0] == pytest.approx(losses[1], abs=apart)


BIG: dict[str, Any] = {
    "model": {"kind": "transformer", "n_layers": 2, "d_model": 64, "n_heads": 2, "context": 8, "vocab_size": 100},
    "training": {"steps": 1, "batch_size": 4},
}


def test_auto_shards_what_one_process_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of one machine share its memory, and where one lacks memory all shard."""
    recipe = Recipe.model_validate(BIG)
    needed, halved = estimate_min_training_bytes(recipe), estimate_min_training_bytes(recipe, 2)
    assert 0.5 < halved / needed < 0.6, "activations are not shared"

    def decided(memory: Callable[[int], int | None], local: int = 1, size: int = 2) -> list[bool]:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(local))
        return together(
            monkeypatch, size, lambda world: _must_shard(recipe, replace(CPU, world=world), memory(world.rank))
        )

    assert decided(lambda rank: needed) == [False, False]
    assert decided(lambda rank: needed - 1) == [True, True]
    assert decided(lambda rank: needed - rank) == [True, True]
    assert decided(lambda rank: 2 * needed - 1, local=2) == [True, True]
    assert decided(lambda rank: None) == [False, False]
    assert decided(lambda rank: 1, size=1) == [False]


@pytest.mark.system
def test_evaluation_shares_what_one_process_cannot_hold(place: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else: no other precision than training has, and no model that takes several passes for a batch."""
    base = resolve_reference(str(place.run("muon")))
    n_bytes = sum((base.checkpoint.path / name).stat().st_size for name in base.checkpoint.model_files)
    masked, adapted = (resolve_reference(str(place.run(name))).recipe for name in ("encoder", "lora"))

    def decided(memory: int | None, recipe: Recipe = base.recipe, precision: str = "float32", size: int = 2) -> bool:
        monkeypatch.setattr(loading, "device_memory_bytes", lambda device: memory)
        compute = ExecutionContext(CPU.device, precision)

        def needs(world: World) -> bool:
            return loading._needs_sharding(recipe, base.checkpoint, replace(compute, world=world))

        (found,) = set(together(monkeypatch, size, needs))
        return found

    assert [decided(memory) for memory in (None, n_bytes, n_bytes - 1)] == [False, False, True]
    assert decided(1, precision="bfloat16")
    assert not any([decided(1, precision="int8"), decided(1, size=1), decided(1, masked), decided(1, adapted)])


@pytest.mark.parametrize(
    "key", ["training.precision", "training.compile", "training.minutes", "evaluation.gradient_norms"]
)
def test_what_a_sharded_model_cannot_do_is_refused(key: str) -> None:
    """Before anything is trained."""
    of, name = key.split(".")
    values = {"precision": "float16", "compile": True, "minutes": 1, "gradient_norms": True}
    fields: dict[str, dict[str, Any]] = {"training": {"shard": "full"}, "evaluation": {}}
    fields[of][name] = values[name]
    recipe = Recipe.model_validate(BIG | fields | {"training": BIG["training"] | fields["training"]})
    compute = ExecutionContext(torch.device("cpu"), "float16" if name == "precision" else "float32")
    with refuses("usage") as caught:
        _must_shard(recipe, replace(compute, world=World(0, 2)), None)
    assert caught.value.where.startswith(key)
    assert "shard=none" in caught.value.fix


@pytest.mark.parametrize("differs", ["recipe", "training data", None])
def test_processes_that_disagree_are_told(monkeypatch: pytest.MonkeyPatch, differs: str | None) -> None:
    """The one that differs from the main process says so; the same files may lie elsewhere."""

    def complaint(world: World) -> str:
        data = {"train": [f"machine{world.rank}/text.txt"]}
        other = world.rank == 1 and differs is not None
        recipe = Recipe.model_validate(BIG | {"data": data, "seed": 2 if other and differs == "recipe" else 1})
        content = "other" if other and differs == "training data" else "same"
        try:
            check_same_inputs_in_all_processes(recipe, content, world)
        except UsageError as error:
            return error.what
        return ""

    told = "" if differs is None else f"process 1 has another {differs} than process 0"
    assert together(monkeypatch, 3, complaint) == ["", told, ""]
