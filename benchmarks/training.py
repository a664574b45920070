"""Training throughput compared with Transformers: the same weights, tokens and optimizer, in turns.

    python benchmarks/training.py [TEXT] [--layers 6 --width 384 --heads 6 --context 128 --batch 32]

Every contender trains its own copy of one GPT-2 with AdamW on the same batches, in a process of its own. They take
turns of a few steps each, so that other load on the machine affects all alike; figures are medians over turns.
Transformers runs in a plain loop with its fastest settings: fused AdamW, fused GELU, and the faster of eager and SDPA
attention; once more with lmtool's way to allocate memory, which a plain loop does not have.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from bench import describe_machine, medians, options_of, print_head, print_row, run_in_turns
from transformers import GPT2Config, GPT2LMHeadModel

from lmtool.compute.device import ExecutionContext, configure_compute
from lmtool.data.order import sample_numbers_for_rank
from lmtool.model import LanguageModel, build
from lmtool.objective import CausalObjective
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import AdamW, Constant, Training
from lmtool.recipe.spec.transformer import Transformer
from lmtool.training.fit import ModelAndOptimizers, fit
from lmtool.training.optimizer import Optimizers
from lmtool.training.windows import Windows

STEPS = 10_000


class Tokens:
    """Characters of a text in memory, as a token store."""

    def __init__(self, text: str) -> None:
        alphabet = sorted(set(text))
        number = {character: i for i, character in enumerate(alphabet)}
        self._tokens = np.array([number[character] for character in text], dtype=np.int64)
        self.vocab_size = len(alphabet)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._tokens[start:stop]


def invented_text(n_characters: int) -> str:
    """Synthetic text of words with a Zipf distribution."""
    rng = np.random.default_rng(1)
    words = ["".join(rng.choice(list("aeioulnrstdmkp"), rng.integers(2, 9))) for _ in range(2000)]
    weights = 1 / np.arange(1, len(words) + 1)
    drawn = rng.choice(len(words), n_characters // 4, p=weights / weights.sum())
    return " ".join(words[i] for i in drawn)[:n_characters]


def ours(model: LanguageModel, examples: Windows, recipe: Recipe, compute: ExecutionContext) -> Iterator[float]:
    """Losses of lmtool's own training loop, per step."""
    optimizers = Optimizers(recipe.optimizer, model, compute)
    for step in fit(
        ModelAndOptimizers(model, CausalObjective(Causal(), -1, False), optimizers), examples, recipe, compute
    ):
        yield step.loss


def theirs(model: GPT2LMHeadModel, examples: Windows, recipe: Recipe, compute: ExecutionContext) -> Iterator[float]:
    """Losses of a plain loop over Transformers' GPT-2, per step."""
    spec = recipe.optimizer
    assert isinstance(spec, AdamW)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": spec.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=True)
    for step in range(STEPS):
        rows = torch.from_numpy(
            np.stack(
                [example.tokens for example in examples.read(sample_numbers_for_rank(step, recipe.training.batch_size))]
            )
        )
        inputs, targets = rows[:, :-1].to(compute.device), rows[:, 1:].to(compute.device)
        with compute.autocast():
            logits = model(input_ids=inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield float(loss.detach())


def same_weights(source: LanguageModel, config: GPT2Config, attention: str) -> GPT2LMHeadModel:
    """Transformers' GPT-2 with our weights."""
    config._attn_implementation = attention
    model = GPT2LMHeadModel(config)
    own = source.state_dict()
    renamed = {"transformer.wte.weight": own["inputs.tokens.weight"], "lm_head.weight": own["inputs.tokens.weight"]}
    renamed["transformer.wpe.weight"] = own["inputs.position.table.weight"]
    for kind in ("weight", "bias"):
        renamed[f"transformer.ln_f.{kind}"] = own[f"stack.norm.{kind}"]
        for layer in range(config.n_layer):
            there, attend, feed = (
                f"transformer.h.{layer}",
                f"stack.sublayers.{2 * layer}",
                f"stack.sublayers.{2 * layer + 1}",
            )
            renamed[f"{there}.ln_1.{kind}"] = own[f"{attend}.norm.{kind}"]
            renamed[f"{there}.ln_2.{kind}"] = own[f"{feed}.norm.{kind}"]
            for theirs_, ours_ in (
                ("attn.c_attn", f"{attend}.mixer.qkv"),
                ("attn.c_proj", f"{attend}.mixer.out"),
                ("mlp.c_fc", f"{feed}.mixer.up"),
                ("mlp.c_proj", f"{feed}.mixer.out"),
            ):
                # their matrices are stored transposed
                renamed[f"{there}.{theirs_}.{kind}"] = own[f"{ours_}.{kind}"].t()
    model.load_state_dict(renamed)
    return model.train()


def options() -> argparse.Namespace:
    parser = options_of(__doc__)
    parser.add_argument("text", nargs="?", type=Path)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="steps in a turn")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--take-turns", metavar="NAME", help="be one of the contenders: a turn for each line that is read"
    )
    return parser.parse_args()


def contender(given: argparse.Namespace) -> Iterator[float]:
    """Losses of the contender that the options name, per step."""
    library, precision, *attention = given.take_turns.split()
    tokens = Tokens(given.text.read_text("utf-8") if given.text else invented_text(1_000_000))
    spec = Transformer(
        kind="transformer",
        n_layers=given.layers,
        d_model=given.width,
        n_heads=given.heads,
        context=given.context,
        activation="gelu-tanh",
    )
    recipe = Recipe(
        model=spec,
        training=Training(steps=STEPS, batch_size=given.batch),
        optimizer=AdamW(lr=1e-3),
        schedule=Constant(kind="constant"),
    )
    examples = Windows(tokens, CausalObjective(Causal(), -1, False).choose_text_cut(given.context), seed=1)  # type: ignore[arg-type]
    compute = configure_compute(given.device, precision)
    torch.manual_seed(1)
    model = build(spec, tokens.vocab_size).to(compute.device)
    if library == "lmtool":
        return ours(model, examples, recipe, compute)
    config = GPT2Config(
        vocab_size=tokens.vocab_size,
        n_positions=given.context,
        n_embd=given.width,
        n_layer=given.layers,
        n_head=given.heads,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=None,
        eos_token_id=None,
    )
    return theirs(same_weights(model, config, attention[0]).to(compute.device), examples, recipe, compute)


def take_turns(given: argparse.Namespace) -> None:
    """Print the seconds and losses of a turn for each line of standard input; the first is a warm-up of two steps."""
    steps = contender(given)
    for turn, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        losses = [next(steps) for _ in range(given.steps if turn else 2)]
        print(json.dumps({"seconds": time.perf_counter() - began, "losses": losses}), flush=True)


class Contender:
    """A process that trains when it is asked to.

    keeps_memory: it allocates memory as lmtool does; losses: of all its steps.
    """

    def __init__(self, name: str, keeps_memory: bool) -> None:
        self.losses: list[float] = []
        self.process = subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--take-turns", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ({} if keeps_memory else {"GLIBC_TUNABLES": ""}),  # set: lmtool changes nothing
        )

    def turn(self) -> float:
        """Returns the seconds of some steps."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        done = json.loads(self.process.stdout.readline())
        self.losses += done["losses"]
        seconds: float = done["seconds"]
        return seconds


def main() -> None:
    given = options()
    if given.take_turns:
        return take_turns(given)
    fast = configure_compute(given.device, "auto")
    contenders = {f"lmtool {precision}": True for precision in (fast.precision, "float32")}
    peers = [
        f"transformers {precision} {kind}" for precision in (fast.precision, "float32") for kind in ("eager", "sdpa")
    ]
    running = {
        name: Contender(name, keeps_memory) for name, keeps_memory in (contenders | dict.fromkeys(peers, False)).items()
    }
    kept = f"transformers {fast.precision} sdpa"
    running[f"{kept}, freed memory kept"] = Contender(kept, True)
    found = run_in_turns({name: one.turn for name, one in running.items()}, given.turns, warm_up=1)
    speeds = {name: given.steps * given.batch * given.context / seconds for name, seconds in medians(found).items()}
    print(f"{describe_machine()}; {fast.describe()}; torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(
        f"{given.layers} layers x {given.width}, T {given.context}, B {given.batch}; "
        f"{given.turns} turns of {given.steps} steps"
    )
    print_head("contender", "tokens/s", "first loss", "last loss")
    for name, one in running.items():
        print_row(name, f"{speeds[name]:,.0f}", f"{one.losses[0]:.4f}", f"{one.losses[-1]:.4f}")
        one.process.kill()
    own = f"lmtool {fast.precision}"
    for precision in (fast.precision, "float32"):
        best = max(speeds[name] for name in peers if precision in name)
        print(f"{own} / transformers {precision}: {speeds[own] / best:.2f}")
    return None


if __name__ == "__main__":
    main()
