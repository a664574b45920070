"""Decoding speed compared with Transformers and CTranslate2: the same random weights and prompts, in turns.

    python benchmarks/decoding.py [gpt2 | translation] [--settings one batch beam alone] [--rounds 3]

gpt2 has the shape of GPT-2 124M: 32 prompt tokens, 64 generated. translation is an encoder-decoder of a size for
Multi30k, with T5's components: 16 source tokens, 16 generated. No text may end earlier. Figures are medians of rounds,
in each of which every contender generates all texts once; the tokens of contenders in float32 are compared with
lmtool's. Needs `pip install transformers ctranslate2`.
"""

import argparse
import contextlib
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from training import same_weights
from transformers import GPT2Config, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from lmtool.decoding.generate import Prompt, generate
from lmtool.decoding.settings import Beam, Greedy
from lmtool.model import DecodeState, LanguageModel, build
from lmtool.model.packed import pack
from lmtool.recipe.spec.transformer import Transformer

START, END = 0, 1
CPU = torch.device("cpu")
Write = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts and a number of beams, 1 for greedy, to the continuations."""


@dataclass(frozen=True)
class Task:
    """A decoding task. n_read, n_written: tokens of each prompt, and of its continuation."""

    spec: Transformer
    vocab_size: int
    n_read: int
    n_written: int
    batch_sizes: tuple[int, ...]


TASKS = {
    "gpt2": Task(
        Transformer.model_validate(
            {
                **{"kind": "transformer", "n_layers": 12, "d_model": 768, "n_heads": 12, "context": 1024},
                **{"activation": "gelu-tanh", "init": {"std": 0.05}},  # larger than in training, so that texts differ
            }
        ),
        50257,
        32,
        64,
        (1, 16),
    ),
    "translation": Task(
        Transformer.model_validate(
            {
                **{"kind": "transformer", "shape": "encoder-decoder", "n_layers": 3, "d_model": 256, "n_heads": 4},
                **{"d_ff": 1024, "context": 64, "activation": "relu", "score": "dot", "bias": False},
                **{"position": {"kind": "relative", "buckets": 32, "max_distance": 128}, "scale_head": True},
                **{"norm": {"kind": "rms", "eps": 1e-6}, "init": {"std": 0.15}},
            }
        ),
        8000,
        16,
        16,
        (1, 64),
    ),
}


def lmtool_writes(model: LanguageModel, n: int, precision: str, alone: bool = False) -> Write:
    """lmtool. alone: each text is computed alone, as with --deterministic."""
    pack(model, precision, CPU)

    def write(prompts: list[list[int]], beams: int) -> list[list[int]]:
        limits = {"max_new_tokens": n, "min_new_tokens": n}
        settings = Greedy(**limits) if beams == 1 else Beam(num_beams=beams, **limits)
        rows = 1 if alone else beams * len(prompts)
        asked = [Prompt((START,), tuple(ids)) if model.reads == "source" else Prompt(tuple(ids)) for ids in prompts]
        texts: list[list[int]] = [[] for _ in prompts]
        with torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext():
            for event in generate(model, asked, settings, end_ids={END}, max_rows=rows):
                texts[event.prompt].append(event.token)
        return texts

    return write


def transformers_writes(model: Any, n: int) -> Write:
    def write(prompts: list[list[int]], beams: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            min_new_tokens=n,
            num_beams=beams,
            do_sample=False,
            eos_token_id=END,
            pad_token_id=END,
        )
        return written[:, -n:].tolist()

    return write


def ctranslate2_writes(path: str, n: int, precision: str, answers: bool) -> Write:
    threads = {"device": "cpu", "compute_type": precision, "intra_threads": torch.get_num_threads()}
    model: Any = ctranslate2.Translator(path, **threads) if answers else ctranslate2.Generator(path, **threads)

    def write(prompts: list[list[int]], beams: int) -> list[list[int]]:
        named = [[f"t{token}" for token in prompt] for prompt in prompts]
        if answers:
            found = model.translate_batch(named, beam_size=beams, max_decoding_length=n, min_decoding_length=n)
            return [[int(token[1:]) for token in result.hypotheses[0]] for result in found]
        found = model.generate_batch(
            named, beam_size=beams, max_length=n, min_length=n, include_prompt_in_result=False, length_penalty=1
        )
        return [result.sequences_ids[0] for result in found]

    return write


def same_t5(source: LanguageModel, spec: Transformer, vocab_size: int) -> T5ForConditionalGeneration:
    """Transformers' T5 with our weights."""
    assert spec.d_ff is not None
    config = T5Config(
        vocab_size=vocab_size,
        d_model=spec.d_model,
        d_kv=spec.d_model // spec.n_heads,
        d_ff=spec.d_ff,
        num_layers=spec.n_layers,
        num_heads=spec.n_heads,
        dropout_rate=0.0,
        feed_forward_proj="relu",
        decoder_start_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
    )
    own = source.state_dict()
    there: dict[str, Tensor] = {"shared.weight": own["inputs.tokens.weight"]}
    for stack, parts in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        first = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        there[first] = own[f"{stack}.position.table.weight"]
        there[f"{stack}.final_layer_norm.weight"] = own[f"{stack}.norm.weight"]
        for number in range(spec.n_layers * (len(parts) + 1)):
            layer, place = divmod(number, len(parts) + 1)
            ours, theirs = f"{stack}.sublayers.{number}", f"{stack}.block.{layer}.layer.{place}"
            there[f"{theirs}.layer_norm.weight"] = own[f"{ours}.norm.weight"]
            if place == len(parts):
                there[f"{theirs}.DenseReluDense.wi.weight"] = own[f"{ours}.mixer.up.weight"]
                there[f"{theirs}.DenseReluDense.wo.weight"] = own[f"{ours}.mixer.out.weight"]
                continue
            joined = [own[f"{ours}.mixer.{name}.weight"] for name in (("qkv",), ("q", "kv"))[place]]
            for part, weight in zip("qkv", torch.cat(joined).chunk(3), strict=True):
                there[f"{theirs}.{parts[place]}.{part}.weight"] = weight
            there[f"{theirs}.{parts[place]}.o.weight"] = own[f"{ours}.mixer.out.weight"]
    model = T5ForConditionalGeneration(config)
    missing, unexpected = model.load_state_dict(there, strict=False)
    assert not unexpected
    assert all("embed_tokens" in name or name == "lm_head.weight" for name in missing)
    model.tie_weights()
    return model


def same_gpt2(source: LanguageModel, spec: Transformer, vocab_size: int) -> Any:
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=spec.context, n_embd=spec.d_model, n_layer=spec.n_layers, n_head=spec.n_heads
    )
    config.activation_function = "gelu_pytorch_tanh"
    config.bos_token_id, config.eos_token_id = START, END
    return same_weights(source, config, "sdpa")


def convert(model: Any, vocab_size: int, folder: Path) -> str:
    """The model as CTranslate2 reads it; its tokens are named t0, t1, ..."""
    model.save_pretrained(folder / "theirs")
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(vocab_size)}, unk_token="t2"))
    named = {"bos_token": f"t{START}", "eos_token": f"t{END}", "pad_token": f"t{END}", "unk_token": "t2"}
    PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder / "theirs")
    TransformersConverter(str(folder / "theirs")).convert(str(folder / "converted"))
    return str(folder / "converted")


def contenders(task: Task, folder: Path) -> dict[str, Write]:
    def ours() -> LanguageModel:
        torch.manual_seed(1)
        return build(task.spec, task.vocab_size).eval()

    answers = task.spec.shape == "encoder-decoder"
    theirs = (same_t5 if answers else same_gpt2)(ours(), task.spec, task.vocab_size).eval()
    path = convert(theirs, task.vocab_size, folder)
    n = task.n_written
    found = {f"lmtool {name}": lmtool_writes(ours(), n, name) for name in ("float32", "bfloat16", "int8")}
    found["transformers float32"] = transformers_writes(theirs, n)
    half = (same_t5 if answers else same_gpt2)(ours(), task.spec, task.vocab_size).eval().to(torch.bfloat16)
    found["transformers bfloat16"] = transformers_writes(half, n)
    # on CPUs it has no bfloat16
    found |= {f"ctranslate2 {name}": ctranslate2_writes(path, n, name, answers) for name in ("float32", "int8")}
    return found


def equal(texts: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> float:
    """The share of the tokens before the first difference."""
    total = same = 0
    for text, other in zip(texts, others, strict=True):
        total += len(text)
        same += next((i for i, (a, b) in enumerate(zip(text, other, strict=True)) if a != b), len(text))
    return same / total


def compare(task: Task, running: dict[str, Write], n_texts: int, beams: int, rounds: int) -> None:
    prompts = torch.randint(2, task.vocab_size, (n_texts, task.n_read), generator=torch.Generator().manual_seed(3))
    texts = {name: write(prompts.tolist(), beams) for name, write in running.items()}
    assert all(len(text) == task.n_written for written in texts.values() for text in written)
    speeds: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, write in running.items():
            began = time.perf_counter()
            write(prompts.tolist(), beams)
            speeds[name].append(n_texts * task.n_written / (time.perf_counter() - began))
    medians = {name: statistics.median(found) for name, found in speeds.items()}
    print(f"\n{n_texts} texts at once, {f'beam {beams}' if beams > 1 else 'greedy'}, medians of {rounds} rounds")
    for name, speed in medians.items():
        same = f"   {100 * equal(texts['lmtool float32'], texts[name]):.1f} % of lmtool's float32 tokens"
        print(
            f"{name:24}{speed:9,.1f} tokens/s  {1e3 * n_texts / speed:7.2f} ms a step"
            f"  {speed / medians['transformers float32']:5.2f} x transformers float32{same}"
        )


def reorder_share(task: Task, write: Write) -> None:
    """The share of a beam search that is spent on reordering the state's rows."""
    spent = 0.0
    pick = DecodeState.pick

    def timed(self: DecodeState, rows: Sequence[int], apart: bool = False) -> DecodeState:
        nonlocal spent
        began = time.perf_counter()
        state = pick(self, rows, apart)
        spent += time.perf_counter() - began
        return state

    prompts = torch.randint(2, task.vocab_size, (1, task.n_read), generator=torch.Generator().manual_seed(3)).tolist()
    DecodeState.pick = timed  # type: ignore[method-assign]
    try:
        began = time.perf_counter()
        write(prompts, 5)
        print(f"\nreordering takes {100 * spent / (time.perf_counter() - began):.2f} % of a search with 5 beams")
    finally:
        DecodeState.pick = pick  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=list(TASKS), default="gpt2")
    parser.add_argument(
        "--settings", nargs="+", choices=["one", "batch", "beam", "alone"], default=["one", "batch", "beam", "alone"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    task = TASKS[given.task]
    one, many = task.batch_sizes
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        running = contenders(task, Path(folder))
        print(
            f"{given.task}: {task.n_read} tokens read, {task.n_written} generated; {torch.get_num_threads()} threads; "
            f"torch {torch.__version__}, transformers {transformers.__version__}, ctranslate2 {ctranslate2.__version__}"
        )
        if "one" in given.settings:
            compare(task, running, one, 1, given.rounds)
        if "batch" in given.settings:
            compare(task, running, many, 1, given.rounds)
        if "beam" in given.settings:
            compare(task, running, one, 5, given.rounds)
            reorder_share(task, running["lmtool float32"])
        if "alone" in given.settings:
            torch.manual_seed(1)
            alone = lmtool_writes(build(task.spec, task.vocab_size).eval(), task.n_written, "float32", alone=True)
            names = ("lmtool float32", "transformers float32")
            pair = {name: running[name] for name in names} | {"lmtool --deterministic": alone}
            compare(task, pair, many, 1, given.rounds)


if __name__ == "__main__":
    main()
