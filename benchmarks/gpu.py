"""What a GPU gains: training, attention, memory of the loss and decoding, beside Transformers and dense masks.

    python benchmarks/gpu.py [training attention memory decoding] [--device cuda] [--batch 16] [--rounds 5] [--quick]

Prints a table for each, as in results.md. Contenders take turns; figures are medians of rounds, after one round that
compiles and is not counted. --quick has tiny sizes and compiles nothing, so that it runs on a CPU; it measures nothing.
Needs `pip install transformers`.

training: GPT-2 of 124M parameters on rows of 1,024 tokens, in bfloat16, compiled; the share is that of the rate of a
large matrix product, with 6 FLOP for each parameter and token, and 12 L D T for attention. attention: forward and
backward pass of attention alone; the dense mask is made before, the blocks of a compiled one in each pass. memory: the
most that a step holds beside weights, forward and backward, with 32,768 tokens; on a CPU as traced. decoding: greedy,
the same weights, GPT-2 of 124M parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import transformers
from bench import medians, options_of, print_head, print_row, run_in_turns, time_call
from torch import Tensor
from torch.nn import functional as F
from training import ours, same_weights, theirs
from transformers import GPT2Config

from lmtool.batch import Batch, Mask
from lmtool.compute.device import ExecutionContext, configure_compute
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.model import LanguageModel, build
from lmtool.model.layers.attention import AttentionOp
from lmtool.model.layers.positions import AlibiPositions
from lmtool.model.packed import pack_weights_
from lmtool.objective import CausalObjective
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import AdamW, Constant, Training
from lmtool.recipe.spec.transformer import Transformer
from lmtool.training.cost.footprint import AllocationTracker
from lmtool.training.windows import Windows


@dataclass(frozen=True)
class Sizes:
    """Of all measurements. window, document: keys that a query attends to, or about as many."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocab_size: int = 50304
    context: int = 1024
    batch: int = 16
    steps: int = 10
    length: int = 4096
    window: int = 256
    document: int = 512
    small_vocab: int = 32768
    written: int = 256
    product: int = 8192

    def spec(self, layers: int | None = None) -> Transformer:
        """GPT-2."""
        return Transformer(
            kind="transformer",
            n_layers=layers or self.layers,
            d_model=self.width,
            n_heads=self.heads,
            context=self.context,
            activation="gelu-tanh",
        )

    def config(self, vocab_size: int, layers: int | None = None) -> GPT2Config:
        """The same for Transformers."""
        return GPT2Config(
            vocab_size=vocab_size,
            n_positions=self.context,
            n_embd=self.width,
            n_layer=layers or self.layers,
            n_head=self.heads,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            activation_function="gelu_pytorch_tanh",
            bos_token_id=None,
            eos_token_id=None,
        )


TINY = Sizes(2, 32, 2, 101, 32, 2, 2, 160, 16, 24, 211, 12, 64)


class RandomTokens:
    """Random ids in memory, as a token store."""

    def __init__(self, vocab_size: int, n: int) -> None:
        self._tokens = np.random.default_rng(1).integers(vocab_size, size=n)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self._tokens[start:stop]


@dataclass(frozen=True)
class Setup:
    """Where and how is measured."""

    sizes: Sizes
    compute: ExecutionContext
    rounds: int
    quick: bool

    def seconds(self, runs: dict[str, Callable[[], object]]) -> dict[str, float]:
        """Returns the median seconds of each, in turns, after one round that is not counted."""
        timed = {name: partial(time_call, run, self.wait) for name, run in runs.items()}
        return medians(run_in_turns(timed, self.rounds, warm_up=1))

    def wait(self) -> None:
        """Until the device has computed everything."""
        if self.compute.device.type == "cuda":
            torch.cuda.synchronize()

    def compiled(self, run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(run, backend="eager" if self.quick else "inductor")

    def model(self, vocab_size: int, layers: int | None = None) -> LanguageModel:
        torch.manual_seed(1)
        return build(self.sizes.spec(layers), vocab_size).to(self.compute.device)


def training(setup: Setup) -> None:
    sizes, device = setup.sizes, setup.compute.device
    recipe = Recipe(
        model=sizes.spec(),
        training=Training(steps=10_000, batch_size=sizes.batch),
        optimizer=AdamW(lr=1e-3),
        schedule=Constant(kind="constant"),
    )
    tokens = RandomTokens(sizes.vocab_size, 1000 * sizes.context)
    examples = Windows(tokens, CausalObjective(Causal(), -1, False).choose_text_cut(sizes.context), seed=1)  # type: ignore[arg-type]  # read like a store
    own = setup.model(sizes.vocab_size)
    n_parameters = sum(parameter.numel() for parameter in own.parameters()) - sizes.context * sizes.width
    other = same_weights(setup.model(sizes.vocab_size), sizes.config(sizes.vocab_size), "sdpa").to(device)
    for model in (own, other):
        model.compile(backend="eager" if setup.quick else "inductor")
    steps = {
        "lmtool": ours(own, examples, recipe, setup.compute),
        "Transformers": theirs(other, examples, recipe, setup.compute),
    }
    losses: dict[str, float] = {}

    def some(name: str) -> Callable[[], None]:
        def run() -> None:
            for _ in range(sizes.steps):
                losses[name] = next(steps[name])

        return run

    found = setup.seconds({name: some(name) for name in steps})
    a, b = (torch.randn(sizes.product, sizes.product, device=device, dtype=setup.compute.dtype) for _ in range(2))
    rate = 2 * sizes.product**3 / setup.seconds({"product": lambda: a @ b})["product"]
    flops = 6 * n_parameters + 12 * sizes.layers * sizes.width * sizes.context
    print(f"\nA product of {sizes.product} x {sizes.product}: {rate / 1e12:.1f} TFLOP/s")
    print_head(f"T {sizes.context}, B {sizes.batch}, compiled", "tokens/s", "share of the product's rate", "loss")
    for name, seconds in found.items():
        speed = sizes.steps * sizes.batch * sizes.context / seconds
        print_row(name, f"{speed:,.0f}", f"{100 * speed * flops / rate:.1f} %", f"{losses[name]:.4f}")


def attention(setup: Setup) -> None:
    sizes, device, dtype = setup.sizes, setup.compute.device, setup.compute.dtype
    n_rows, length = 4, sizes.length
    documents_BS = (torch.rand(n_rows, length) < 1 / sizes.document).cumsum(1).to(device)
    alibi = AlibiPositions(sizes.heads).to(device)
    kinds: dict[str, tuple[Mask, AlibiPositions | None]] = {
        f"window {sizes.window}": (Mask(True, sizes.window), None),
        "ALiBi": (Mask(True), alibi),
        f"documents of {sizes.document}": (Mask(True, documents_BS=documents_BS), None),
    }
    shape = n_rows, sizes.heads, length, sizes.width // sizes.heads
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    print()
    print_head(f"T {length}, B {n_rows}, {sizes.heads} heads", "dense mask", "lmtool, compiled", "lmtool", "ratio")
    for name, (mask, rule) in kinds.items():
        allowed = mask.to_tensor(length, length, device)[:, None]
        if rule is not None:
            places_PS = torch.arange(length, device=device)[None]
            allowed = torch.where(allowed, rule.bias(places_PS, places_PS), -torch.inf).to(dtype)

        def dense(allowed: Tensor = allowed) -> None:
            F.scaled_dot_product_attention(q, k, v, attn_mask=allowed).sum().backward()

        def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask = mask, rule: AlibiPositions | None = rule) -> Tensor:
            return AttentionOp(mask, length, torch.arange(length, device=device)[None], position=rule)(q, k, v, 0.0)

        fast = setup.compiled(attend)
        found = setup.seconds(
            {
                "dense": dense,
                "compiled": lambda fast=fast: fast(q, k, v).sum().backward(),
                "eager": lambda attend=attend: attend(q, k, v).sum().backward(),
            }
        )
        cells = (f"{1e3 * seconds:.2f} ms" for seconds in found.values())
        print_row(name, *cells, f"{found['dense'] / found['compiled']:.1f}")


def memory(setup: Setup) -> None:
    sizes, device, V = setup.sizes, setup.compute.device, setup.sizes.small_vocab
    tokens_BT = torch.randint(V, (sizes.batch, sizes.context), device=device)
    own = setup.model(V, 2)
    other = same_weights(setup.model(V, 2), sizes.config(V, 2), "sdpa").to(device)
    objective = CausalObjective(Causal(), -1, False)

    def lmtool_step() -> None:
        with setup.compute.autocast():
            loss = objective.loss(own, Batch(tokens_BT, tokens_BT)).total
        loss.backward()

    def transformers_step() -> None:
        with setup.compute.autocast():
            loss = other(input_ids=tokens_BT, labels=tokens_BT).loss
        loss.backward()

    print()
    print_head(f"2 layers, vocabulary {V:,}, T {sizes.context}, B {sizes.batch}", "peak memory of a step")
    for name, model, step in (("lmtool", own, lmtool_step), ("Transformers", other, transformers_step)):
        if device.type == "cuda":
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            peak = torch.cuda.max_memory_allocated() - before
        else:
            with AllocationTracker([*model.parameters(), *model.buffers(), tokens_BT]) as ledger:
                step()
            peak = ledger.peak
        model.zero_grad()
        print_row(name, f"{peak / 2**20:,.1f} MiB")


def decoding(setup: Setup) -> None:
    sizes, device = setup.sizes, setup.compute.device
    own, n = setup.model(sizes.vocab_size).eval(), min(sizes.written, sizes.context - 8)
    other = same_weights(own, sizes.config(sizes.vocab_size), "sdpa").to(device, setup.compute.dtype).eval()
    pack_weights_(own, setup.compute.precision, device)
    print()
    print_head(f"{n} tokens after 8, greedy, {setup.compute.precision}", "lmtool", "Transformers", "ratio")
    for n_rows in (1, 8):
        ids = torch.randint(sizes.vocab_size, (n_rows, 8), generator=torch.Generator().manual_seed(n_rows))

        def lmtool_writes(ids: Tensor = ids) -> None:
            with setup.compute.autocast():
                for _ in generate(own, ids.tolist(), SamplingParams("greedy", max_new_tokens=n)):
                    pass

        def transformers_writes(ids: Tensor = ids) -> None:
            there = ids.to(device)
            other.generate(
                there, attention_mask=torch.ones_like(there), max_new_tokens=n, do_sample=False, pad_token_id=0
            )

        with torch.inference_mode():
            found = setup.seconds({"lmtool": lmtool_writes, "Transformers": transformers_writes})
        speeds = {name: n_rows * n / seconds for name, seconds in found.items()}
        cells = (f"{speed:,.0f} tokens/s" for speed in speeds.values())
        print_row(f"batch {n_rows}", *cells, f"{speeds['lmtool'] / speeds['Transformers']:.1f}")


PARTS = {"training": training, "attention": attention, "memory": memory, "decoding": decoding}


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--batch", type=int, help="rows of training and memory; 16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}")
    transformers.utils.logging.set_verbosity_error()
    compute = configure_compute(given.device, "float32" if given.quick else "bfloat16")
    sizes = TINY if given.quick else Sizes()
    setup = Setup(
        replace(sizes, batch=given.batch or sizes.batch), compute, 1 if given.quick else given.rounds, given.quick
    )
    print(f"{compute.describe()}, torch {torch.__version__}, transformers {transformers.__version__}")
    for name in given.parts or PARTS:
        PARTS[name](setup)


if __name__ == "__main__":
    main()
