"""Decoding speed compared with Transformers, CTranslate2 and llama.cpp: the same weights and prompts, in turns.

    python benchmarks/decoding.py gpt2 | translation [--settings one batch beam alone] [--rounds 3]
    python benchmarks/decoding.py published RUN HF_FOLDER [--gguf FILE ...] [--settings ...] [--rounds 3]

gpt2 has the shape of GPT-2 124M and random weights: 32 prompt tokens, 64 generated. translation is an encoder-decoder
of a size for Multi30k, with T5's components and random weights: 16 source tokens, 16 generated. published is an
imported run and the folder that `lmtool export` wrote of it: the first 32 tokens of pages of docs/, 64 generated.
llama.cpp decodes GGUF files of the same weights, greedily, such as its convert_hf_to_gguf.py makes of the folder.

No text may end earlier. Figures are medians of rounds, in each of which every contender generates all texts once; their
tokens are compared with lmtool's in float32. Needs `pip install transformers ctranslate2`; for GGUF files
llama-cpp-python too.
"""

import argparse
import contextlib
import logging
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import torch
import transformers
from bench import describe_machine, medians, options_of, print_head, print_row, run_in_turns, time_call
from ctranslate2.converters import TransformersConverter
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from training import same_weights
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

from lmtool.compute.device import configure_compute
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.interop.resolve import resolve_reference
from lmtool.model import LanguageModel, build
from lmtool.model.packed import pack_weights_
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.load import load_packed_for_inference
from lmtool.tokenization.prompt_format import Prompt

START, END = 0, 1
CPU = torch.device("cpu")
LLAMA = "llama.cpp"
Write = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts and a number of beams, 1 for greedy, to the continuations."""


@dataclass(frozen=True)
class Shape:
    """A model with random weights and the size of its texts. n_read, n_written: tokens of a prompt, a continuation."""

    spec: Transformer
    vocab_size: int
    n_read: int
    n_written: int
    n_texts: int


SHAPES = {
    "gpt2": Shape(
        Transformer.model_validate(
            {
                **{"kind": "transformer", "n_layers": 12, "d_model": 768, "n_heads": 12, "context": 1024},
                **{"activation": "gelu-tanh", "init": {"std": 0.05}},  # larger than in training, so that texts differ
            }
        ),
        50257,
        32,
        64,
        16,
    ),
    "translation": Shape(
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
        64,
    ),
}


@dataclass(frozen=True)
class Task:
    """The forms of one model, and what it decodes.

    ours, theirs: lmtool's, packed, and Transformers', in a precision. folder: its files for Transformers, with the
    tokenizer. ggufs: its files for llama.cpp. answers: it is an encoder-decoder. prompts: those of a batch, all of the
    same length. n_written: tokens of each continuation. end: the token that would end one.
    """

    ours: Callable[[str], LanguageModel]
    theirs: Callable[[str], Any]
    folder: Path
    ggufs: Sequence[Path]
    answers: bool
    prompts: list[list[int]]
    n_written: int
    end: int


def lmtool_writes(task: Task, precision: str, alone: bool = False) -> Write:
    """lmtool. alone: each text is computed alone, as with --deterministic."""
    model, limits = task.ours(precision), {"max_new_tokens": task.n_written, "min_new_tokens": task.n_written}

    def write(prompts: list[list[int]], beams: int) -> list[list[int]]:
        settings = (
            SamplingParams("greedy", **limits) if beams == 1 else SamplingParams("beam", num_beams=beams, **limits)
        )
        rows = 1 if alone else beams * len(prompts)
        asked = [Prompt((START,), tuple(ids)) if task.answers else Prompt(tuple(ids)) for ids in prompts]
        texts: list[list[int]] = [[] for _ in prompts]
        with torch.autocast("cpu", torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext():
            for event in generate(model, asked, settings, end_ids={task.end}, max_rows=rows):
                texts[event.request].append(event.id)
        return texts

    return write


def transformers_writes(task: Task, precision: str) -> Write:
    model, n = task.theirs(precision), task.n_written

    def write(prompts: list[list[int]], beams: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n,
            min_new_tokens=n,
            num_beams=beams,
            do_sample=False,
            eos_token_id=task.end,
            pad_token_id=task.end,
        )
        return written[:, -n:].tolist()

    return write


def ctranslate2_writes(task: Task, converted: Path, precision: str) -> Write:
    threads = {"device": "cpu", "compute_type": precision, "intra_threads": torch.get_num_threads()}
    of_kind = ctranslate2.Translator if task.answers else ctranslate2.Generator
    model: Any = of_kind(str(converted), **threads)
    tokenizer, n = PreTrainedTokenizerFast.from_pretrained(task.folder), task.n_written
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    numbers = {name: number for number, name in enumerate(names)}

    def write(prompts: list[list[int]], beams: int) -> list[list[int]]:
        named = [[names[token] for token in prompt] for prompt in prompts]
        if task.answers:
            found = model.translate_batch(named, beam_size=beams, max_decoding_length=n, min_decoding_length=n)
            return [[numbers[name] for name in result.hypotheses[0]] for result in found]
        found = model.generate_batch(
            named, beam_size=beams, max_length=n, min_length=n, include_prompt_in_result=False, length_penalty=1
        )
        return [result.sequences_ids[0] for result in found]

    return write


def llama_writes(task: Task, path: Path) -> Write:
    """llama.cpp with its defaults: flash attention, keys and values in float16.

    By its C functions, as the class of its package decodes one text at a time.
    """
    import llama_cpp as llama

    logging.getLogger("llama-cpp-python").setLevel(logging.CRITICAL)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    n_texts, n_read = len(task.prompts), len(task.prompts[0])
    settings = llama.llama_context_default_params()
    settings.n_ctx, settings.n_seq_max = n_texts * (n_read + task.n_written), n_texts
    settings.n_batch = settings.n_ubatch = n_texts * n_read
    settings.n_threads = settings.n_threads_batch = torch.get_num_threads()
    context = llama.llama_init_from_model(model, settings)
    assert context is not None, f"llama.cpp does not read {path}"
    batch = llama.llama_batch_init(n_texts * n_read, 0, 1)
    vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))

    def step(new: list[list[int]], start: int) -> list[int]:
        """The next token of each text, given its new tokens, whose first is at `start`."""
        places = [(row, i) for row, ids in enumerate(new) for i in range(len(ids))]
        for at, (row, i) in enumerate(places):
            batch.token[at], batch.pos[at], batch.logits[at] = new[row][i], start + i, i == len(new[row]) - 1
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
        batch.n_tokens = len(places)
        assert llama.llama_decode(context, batch) == 0
        chosen = []
        for at, (row, i) in enumerate(places):
            if i == len(new[row]) - 1:
                logits = np.ctypeslib.as_array(llama.llama_get_logits_ith(context, at), (vocab_size,))
                logits[task.end] = -np.inf
                chosen.append(int(logits.argmax()))
        return chosen

    def write(prompts: list[list[int]], beams: int) -> list[list[int]]:
        assert beams == 1
        llama.llama_memory_clear(llama.llama_get_memory(context), False)
        columns = [step(prompts, 0)]
        while len(columns) < task.n_written:
            columns.append(step([[token] for token in columns[-1]], n_read + len(columns) - 1))
        return [list(text) for text in zip(*columns, strict=True)]

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


def invented(shape: Shape, folder: Path) -> Task:
    """A model with random weights, that Transformers saves to a folder; its tokens are named t0, t1, ..."""
    answers = shape.spec.shape == "encoder-decoder"

    def new() -> LanguageModel:
        torch.manual_seed(1)
        return build(shape.spec, shape.vocab_size).eval()

    def ours(precision: str) -> LanguageModel:
        model = new()
        pack_weights_(model, precision, CPU)
        return model

    def theirs(precision: str) -> Any:
        model = (same_t5 if answers else same_gpt2)(new(), shape.spec, shape.vocab_size)
        return model.eval().to(getattr(torch, precision))

    theirs("float32").save_pretrained(folder)
    words = Tokenizer(WordLevel({f"t{i}": i for i in range(shape.vocab_size)}, unk_token="t2"))
    named = {"bos_token": f"t{START}", "eos_token": f"t{END}", "pad_token": f"t{END}", "unk_token": "t2"}
    PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(folder)
    size, generator = (shape.n_texts, shape.n_read), torch.Generator().manual_seed(3)
    prompts = torch.randint(2, shape.vocab_size, size, generator=generator).tolist()
    return Task(ours, theirs, folder, (), answers, prompts, shape.n_written, END)


def published(run: str, folder: Path, ggufs: Sequence[Path]) -> Task:
    """An imported run, and its export."""

    def ours(precision: str) -> LanguageModel:
        return load_packed_for_inference(resolve_reference(run), configure_compute("cpu", precision)).model

    def theirs(precision: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=precision, attn_implementation="sdpa").eval()

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    pages = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))[:16]
    prompts = [tokenizer.encode(page.read_text("utf-8"), add_special_tokens=False)[:32] for page in pages]
    return Task(ours, theirs, folder, ggufs, False, prompts, 64, tokenizer.eos_token_id)


def contenders(task: Task, folder: Path) -> dict[str, Write]:
    """All that decode a task. folder: a new one for CTranslate2's files."""
    found = {f"lmtool {name}": lmtool_writes(task, name) for name in ("float32", "bfloat16", "int8")}
    found |= {f"transformers {name}": transformers_writes(task, name) for name in ("float32", "bfloat16")}
    TransformersConverter(str(task.folder)).convert(str(folder))
    known = ctranslate2.get_supported_compute_types("cpu")
    names = [name for name in ("float32", "bfloat16", "int8") if name in known]
    found |= {f"ctranslate2 {name}": ctranslate2_writes(task, folder, name) for name in names}
    return found | {f"{LLAMA} {path.stem}": llama_writes(task, path) for path in task.ggufs}


def equal(texts: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> float:
    """The share of the tokens before the first difference."""
    total = same = 0
    for text, other in zip(texts, others, strict=True):
        total += len(text)
        same += next((i for i, (a, b) in enumerate(zip(text, other, strict=True)) if a != b), len(text))
    return same / total


def compare(task: Task, running: dict[str, Write], n_texts: int, beams: int, rounds: int) -> None:
    prompts = task.prompts[:n_texts]
    texts = {name: write(prompts, beams) for name, write in running.items()}
    assert all(len(text) == task.n_written for written in texts.values() for text in written)
    timed = {name: partial(time_call, partial(write, prompts, beams)) for name, write in running.items()}
    seconds = medians(run_in_turns(timed, rounds))
    print(f"\n{n_texts} texts at once, {f'beam {beams}' if beams > 1 else 'greedy'}, medians of {rounds} rounds")
    print_head("contender", "tokens/s", "ms a step", "beside transformers float32", "of lmtool's float32 tokens")
    for name, spent in seconds.items():
        same = equal(texts["lmtool float32"], texts[name])
        ratio = seconds["transformers float32"] / spent
        speed = n_texts * task.n_written / spent
        print_row(name, f"{speed:,.1f}", f"{1e3 * spent / task.n_written:.2f}", f"{ratio:.2f}", f"{100 * same:.1f} %")


def main() -> None:
    parser = options_of(__doc__)
    tasks = parser.add_subparsers(dest="task", required=True)
    common = argparse.ArgumentParser(add_help=False)
    settings = ["one", "batch", "beam", "alone"]
    common.add_argument("--settings", nargs="+", choices=settings, default=settings)
    common.add_argument("--rounds", type=int, default=3)
    for name in SHAPES:
        tasks.add_parser(name, parents=[common])
    reading = tasks.add_parser("published", parents=[common])
    reading.add_argument("run", metavar="RUN")
    reading.add_argument("folder", type=Path, metavar="HF_FOLDER")
    reading.add_argument("--gguf", nargs="+", type=Path, default=[], metavar="FILE")
    given = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name, torch.inference_mode():
        scratch = Path(name)
        if given.task == "published":
            task = published(given.run, given.folder, given.gguf)
        else:
            task = invented(SHAPES[given.task], scratch / "theirs")
        running = contenders(task, scratch / "converted")
        searching = {name: write for name, write in running.items() if not name.startswith(LLAMA)}
        n_texts, n_read = len(task.prompts), len(task.prompts[0])
        print(describe_machine())
        print(
            f"{given.task}: {n_read} tokens read, {task.n_written} generated; {torch.get_num_threads()} threads; "
            f"torch {torch.__version__}, transformers {transformers.__version__}, ctranslate2 {ctranslate2.__version__}"
        )
        if "one" in given.settings:
            compare(task, running, 1, 1, given.rounds)
        if "batch" in given.settings:
            compare(task, running, n_texts, 1, given.rounds)
        if "beam" in given.settings:
            compare(task, searching, 1, 5, given.rounds)
        if "alone" in given.settings:
            alone = lmtool_writes(task, "float32", alone=True)
            pair = {name: running[name] for name in ("lmtool float32", "transformers float32")}
            compare(task, pair | {"lmtool --deterministic": alone}, n_texts, 1, given.rounds)


if __name__ == "__main__":
    main()
