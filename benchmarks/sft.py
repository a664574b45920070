"""Supervised fine-tuning of a published chat model with LoRA, compared with a plain loop over peft.

    python benchmarks/sft.py MODEL.gguf [--pairs 1000 --questions 200 --epochs 1 --batch 8 --rank 8 --quantize int4]

The pairs are of the bundled world: a few sentences about who has what and who gives what to whom, the question who has
one of these things at the end, and the name. A model must learn to follow the things and to answer with nothing else.
No question is among the pairs.

First `lmtool finetune` trains in a process of its own, whose peak memory is reported, and answers the questions
greedily. Then both train on the same rows, in turns of some steps, so that other load on the machine affects both
alike: peft's adapters on Transformers' model of the same file, rows shuffled, each batch padded to its longest row,
fused AdamW. Tokens are those of the rows, prompt included, without padding.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import peft
import torch
import transformers
from torch import Tensor, nn

from lmtool.compute.device import Compute, choose_compute
from lmtool.compute.processes import World as Processes
from lmtool.inference.base import Base
from lmtool.inference.load import Initialization, build_for_training
from lmtool.interop.importing import imported
from lmtool.objective import build_objective
from lmtool.recipe.load import Setting, settings_of
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import AdamW, Lora
from lmtool.tables.data import TableData
from lmtool.tables.prepare import read_tables
from lmtool.tables.rows import EncodedRow
from lmtool.training.finetuning import plan_finetuning
from lmtool.training.fit import Trainable, fit
from lmtool.training.optimizer import Optimizers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "data" / "make"))

from lexicon import MEN, TREASURES, WOMEN
from world import Person, Thing, World

IGNORE = -100


def exchange(rng: random.Random) -> dict[str, str]:
    """A story of three people and two things that change hands once or twice, a question about one, and the answer."""
    world = World()
    people = [Person(name, "") for name in rng.sample(WOMEN + MEN, 3)]
    things = [Thing(noun, rng.choice(TREASURES[noun])) for noun in rng.sample(sorted(TREASURES), 2)]
    said = []
    for thing, owner in zip(things, rng.sample(people, 2), strict=True):
        world.put(thing, owner)
        said.append(f"{owner.name} had {'an' if thing.adj[0] in 'aeiou' else 'a'} {thing.adj}{thing.noun}.")
    for _ in range(rng.randint(1, 2)):
        thing = rng.choice(things)
        giver = world.holder(thing)
        taker = rng.choice([one for one in people if one is not giver])
        world.give(giver, thing, taker)
        said.append(f"{giver.name} gave the {thing.noun} to {taker.name}.")
    asked = rng.choice(things)
    prompt = " ".join([*said, f"Who has the {asked.noun} now?"])
    return {"prompt": prompt, "completion": world.holder(asked).name}


def exchanges(n: int, seed: int) -> list[dict[str, str]]:
    """So many exchanges, no two with the same prompt."""
    rng = random.Random(f"sft {seed}")
    found: dict[str, dict[str, str]] = {}
    while len(found) < n:
        one = exchange(rng)
        found.setdefault(one["prompt"], one)
    return list(found.values())


def padded(rows: Sequence[EncodedRow]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, attention mask, and labels of the answers only."""
    T = max(sum(row.lengths) for row in rows)
    tokens_BT, keep_BT = torch.zeros(len(rows), T, dtype=torch.int64), torch.zeros(len(rows), T, dtype=torch.int64)
    labels_BT = torch.full((len(rows), T), IGNORE)
    for i, row in enumerate(rows):
        assert row.target is not None
        whole = np.concatenate((row.tokens, row.target))
        tokens_BT[i, : len(whole)] = torch.from_numpy(whole)
        keep_BT[i, : len(whole)] = 1
        labels_BT[i, len(row.tokens) : len(whole)] = torch.from_numpy(row.target)
    return tokens_BT, keep_BT, labels_BT


def ours(data: TableData, base: Base, compute: Compute) -> Iterator[int]:
    """Tokens of each step of lmtool's own training loop."""
    recipe, tokenizer = data.recipe, data.prompt_format.tokenizer
    lm, _ = build_for_training(recipe, tokenizer, compute, data.set_statistics, Initialization(base))
    objective = build_objective(recipe, tokenizer)
    examples = data.examples(objective)
    optimizers = Optimizers(recipe.optimizer, lm, compute, recipe.tuning)
    for step in fit(Trainable(lm, objective, optimizers), examples, recipe, compute, Processes()):
        first = (step.step - 1) * recipe.training.batch_size
        read = examples.read(np.arange(first, first + recipe.training.batch_size))
        yield sum(len(one.tokens) + (0 if one.other is None else len(one.other)) for one in read)


def theirs(data: TableData, file: Path, lora: Lora, compute: Compute) -> Iterator[int]:
    """Tokens of each step of a plain loop over peft."""
    recipe, spec = data.recipe, data.recipe.optimizer
    assert isinstance(spec, AdamW)
    bare = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    targets = [f"{name[0]}_proj" for name in lora.targets if name in ("query", "key", "value")]
    config = peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
    model: nn.Module = peft.get_peft_model(bare, config).train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=spec.lr, betas=(spec.beta1, spec.beta2), fused=True)
    rows = [row for task in data.tasks for row in task.train]
    order, rng = np.array([], dtype=np.int64), np.random.default_rng(recipe.seed)
    while True:
        if len(order) < recipe.training.batch_size:
            order = np.concatenate((order, rng.permutation(len(rows))))
        batch, order = order[: recipe.training.batch_size], order[recipe.training.batch_size :]
        tokens_BT, keep_BT, labels_BT = padded([rows[i] for i in batch])
        with compute.autocast():
            loss = model(input_ids=tokens_BT, attention_mask=keep_BT, labels=labels_BT).loss
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield int(keep_BT.sum())


def compare(data: TableData, base: Base, file: Path, turns: int, steps: int) -> None:
    """Print tokens per second of both, medians over alternating turns, each after one step that is not counted."""
    recipe: Recipe = data.recipe
    assert recipe.tuning.lora is not None
    fast, exact = choose_compute("cpu", "auto"), choose_compute("cpu", "float32")
    running = {f"lmtool {fast.precision}": ours(data, base, fast)}
    for compute in dict.fromkeys((fast.precision, exact.precision)):
        chosen = fast if compute == fast.precision else exact
        running[f"peft {compute}"] = theirs(data, file, recipe.tuning.lora, chosen)
    speeds: dict[str, list[float]] = {name: [] for name in running}
    for contender in running.values() if turns else ():
        next(contender)
    for _ in range(turns):
        for name, contender in running.items():
            began = time.perf_counter()
            tokens = sum(next(contender) for _ in range(steps))
            speeds[name].append(tokens / (time.perf_counter() - began))
    for name, each in speeds.items() if turns else ():
        print(f"{name:16} {statistics.median(each):7,.0f} tokens/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--pairs", type=int, default=1000, metavar="N")
    parser.add_argument("--questions", type=int, default=200, metavar="N")
    parser.add_argument("--epochs", type=float, default=1, metavar="N")
    parser.add_argument("--batch", type=int, default=8, metavar="N")
    parser.add_argument("--rank", type=int, default=8, metavar="N")
    parser.add_argument("--quantize", choices=("none", "int8", "int4"), default="none", help="the frozen matrices")
    parser.add_argument("--turns", type=int, default=3, metavar="N")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="steps in a turn")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    given = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    made = exchanges(given.pairs + given.questions, given.seed)
    run = imported(str(given.model))
    with tempfile.TemporaryDirectory() as scratch:
        table, asked, out = Path(scratch, "pairs.jsonl"), Path(scratch, "questions.jsonl"), Path(scratch, "run")
        for file, rows in ((table, made[: given.pairs]), (asked, made[given.pairs :])):
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{made[0]['prompt']} -> {made[0]['completion']}", flush=True)
        settings = [f"training.batch_size={given.batch}", f"tuning.lora.quantize={given.quantize}"]
        command = [sys.executable, "-m", "lmtool", "finetune", str(table), "--from", str(run), "--test", str(asked)]
        command += ["--lora-rank", str(given.rank), "--epochs", str(given.epochs), "--quiet", "-o", str(out)]
        command += [part for setting in settings for part in ("-s", setting)]
        began = time.perf_counter()
        # before this process grows, since a child begins with the peak of its parent
        _, status, usage = os.wait4(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, 0)
        if status:
            raise SystemExit("lmtool finetune failed")
        seconds = time.perf_counter() - began
        found = json.loads((out / "metrics.json").read_text(encoding="utf-8"))
        print(f"exact match on {found['rows']} questions {100 * found['exact']:.1f} %, loss {found['loss']:.4f}")
        print(f"whole command {seconds:.0f} s, peak memory {usage.ru_maxrss / 1e6:.2f} GB", flush=True)
        flags = [
            Setting("data.train", [str(table)], "TABLE"),
            Setting("training.epochs", given.epochs, "--epochs"),
            Setting("tuning.lora.rank", given.rank, "--lora-rank"),
        ]
        plan = plan_finetuning(str(run), None, settings_of(settings, flags))
        assert plan.base is not None
        data = read_tables(plan.resolved.recipe, plan.tables, plan.base.tokenizer)
        compare(data, plan.base, given.model, given.turns, given.steps)


if __name__ == "__main__":
    main()
