"""Every runner of files from outside: valid files to begin with, and what reads them."""

import base64
import hashlib
import json
import random
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save

from lmtool.apps.search.index import SCHEMA, TEXTS, VECTORS, Index, remove_texts_by_id_or_source
from lmtool.data.corpus import open_corpus
from lmtool.data.store import EncodedChunk, StoreWriter, TokenStore
from lmtool.data.table import open_table
from lmtool.data.vectors import VectorFile
from lmtool.generation.params import MaskPredict, SamplingParams, params_to_record
from lmtool.generation.prompts import gather_prompts
from lmtool.generation.replay import read_generation_records
from lmtool.interop.importing import read_recipe_sections
from lmtool.interop.published_models import PublishedModel, open_published_model
from lmtool.interop.tokenization.reading import read_published_tokenizer
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.text import (
    BpeTokenizer,
    CharTokenizer,
    TrainedTokenizerSpecBase,
    WordPieceTokenizer,
    WordTokenizer,
)
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs import tensors
from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.damage import find_damaged_run_files
from lmtool.runs.directory import CHECKPOINTS, Run
from lmtool.runs.files import ValidationState, read_saved_state
from lmtool.runs.reference import read_verified_or_checkpoint_recipe
from lmtool.runs.saving import CheckpointContent
from lmtool.storage.checksum import xxh3
from lmtool.tasks.reading import read_labelled_table
from lmtool.tasks.schema import choose_columns
from lmtool.tokenization import template as sandbox
from lmtool.tokenization.chat import ChatFormat, Message
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.damage import sign
from tests.support.runs import run_info
from tests.tokenization import chat_templates
from tests.tokenization.chat_templates import published

TEXT = "The baker sold a kettle at dawn, and the señora \u201cforgot\u201d the map by the sea. 1,000 moons!\n" * 4
TABLE = "text,label\n" + "".join(f'"a row, number {n}",{"good" if n % 2 else "bad"}\n' for n in range(8))
PAIRS = "source\ttarget\n" + "".join(f"ein Hund {n}\ta dog {n}\n" for n in range(8))
ROWS = [{"text": f"a row {n}", "label": n % 2, "tags": ["a", "b"]} for n in range(8)]
CONLL = "The O\nbaker B-PER\n\nParis B-LOC\nrained O\n\n" * 3
ANSWERED = [
    {"id": "1", "question": "Who?", "answers": [{"text": "The baker", "answer_start": 0}]},
    {"id": "2", "question": "What?", "answers": [{"text": "a kettle", "answer_start": 15}]},
]
QUESTIONS = {"data": [{"paragraphs": [{"context": "The baker sold a kettle.", "qas": ANSWERED}]}]}
CONFIG: dict[str, Any] = {
    **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 16, "intermediate_size": 24},
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64},
    **{"vocab_size": 40, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"},
    "tie_word_embeddings": False,
}
MESSAGES: tuple[Message, ...] = (
    {"role": "user", "content": "Who sold it?"},
    {"role": "assistant", "content": "The baker."},
)
TURNS = [{"messages": list(MESSAGES)} for _ in range(3)]


class ModelRunner(NamedTuple):
    """seeds: makes valid files in an empty folder. read: reads such content, which may raise lmtool's errors."""

    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path, bytes], object]


def _valid(*contents: str | bytes) -> Callable[[Path], list[bytes]]:
    return lambda _: [content.encode() if isinstance(content, str) else content for content in contents]


def _written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def _as_file(name: str, use: Callable[[str], object]) -> Callable[[Path, bytes], object]:
    """Reads content from a file of this name."""
    return lambda folder, content: use(str(_written(folder, name, content)))


def _file_of(make: Callable[[Path], object], name: str, use: Callable[[Path], object]) -> ModelRunner:
    """A file of what `make` makes in a place, which `use` reads whole."""

    def seeds(folder: Path) -> list[bytes]:
        make(folder / "made")
        return [(folder / "made" / name).read_bytes()]

    def read(folder: Path, content: bytes) -> None:
        if not (folder / "made").exists():
            make(folder / "made")
        (folder / "made" / name).write_bytes(content)
        use(folder / "made")

    return ModelRunner(seeds, read)


# Recipes


RECIPES = ("default", "transformer-tiny", "lstm", "dan", "bert-tiny")


def _recipes(_: Path) -> list[bytes]:
    return [shipped_recipes()[name].read_bytes() for name in RECIPES]


SETTINGS = (
    *(b"training.steps=500", b"optimizer.lr=1e-3", b"seed=+1"),
    b"model={kind: recurrent, cell: lstm, n_layers: 1, d_model: 8, context: 8}",
    *(b"evaluation.prompts=[One day, It rained]", b"data.train=[a.txt, b.txt]", b"model.d_ff=null"),
    *(b"tokenizer.kind=char", b"schedule={kind: cosine, warmup_steps: 10}", b"model.position={kind: rotary}"),
)


def _read_setting(_: Path, content: bytes) -> None:
    load("default", [content.decode("utf-8", "surrogateescape")])


# Tables and texts


def _use_table(path: str) -> None:
    table = open_table(path)
    read_labelled_table(table, choose_columns(table, kind=None), skip_bad_rows=True)


def _use_corpus(path: str) -> None:
    for chunk in open_corpus([path], column="text", documents="auto").chunks():
        assert chunk.texts


def _lines(rows: Iterable[object]) -> str:
    return "\n".join(map(json.dumps, rows))


def _parquet(folder: Path) -> list[bytes]:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"text": [f"a row {n}" for n in range(8)], "label": ["a", "b"] * 4}), path)
    flat = path.read_bytes()
    pq.write_table(pa.table({"text": ["x", None] * 4, "label": [[1], [2, 3]] * 4}), path, compression="gzip")
    return [flat, path.read_bytes()]


WORDS = "\n".join(f"word{n} 0.5 -1.25 {n}" for n in range(5))
BINARY = b"3 2\n" + b"".join(w + b" " + np.array([1, 2], "<f4").tobytes() + b"\n" for w in (b"a", b"b", b"c"))


def _use_vectors(path: str) -> None:
    VectorFile.open(Path(path)).read({"word1", "a"})


def _records(_: Path) -> list[bytes]:
    common = {"prompt": "One", "sample": 0, "tokens": [8, 9], "text": " day", "draw": 0, "steps": 2, "run": "runs/a"}
    common |= {"step": 2, "checkpoint": "c0", "device": "cpu", "precision": "float32", "threads": 1}
    options = {"stop": ["."], "prefix": "", "overflow": "cut", "mask": None, "length": 0, "max_rows": 16}
    kinds = (
        SamplingParams("greedy", max_time=2.0),
        SamplingParams(top_k=4, logit_bias=(((8, 9), -1.0),)),
        SamplingParams("beam", num_beams=2),
        MaskPredict(),
    )
    return [json.dumps(common | {"settings": params_to_record(kind), "options": options}).encode() for kind in kinds]


# Models


TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.int64)}


def _use_tensors(path: str) -> None:
    dict(tensors.SavedTensors([Path(path)]))


def _weights() -> dict[str, torch.Tensor]:
    shapes = {
        **{f"self_attn.{name}_proj": (n, 16) for name, n in (("q", 16), ("k", 8), ("v", 8), ("o", 16))},
        **{"mlp.gate_proj": (24, 16), "mlp.up_proj": (24, 16), "mlp.down_proj": (16, 24)},
        **{"input_layernorm": (16,), "post_attention_layernorm": (16,)},
    }
    weights = {f"model.layers.0.{name}.weight": torch.ones(shape) for name, shape in shapes.items()}
    ends = {"model.embed_tokens": (40, 16), "model.norm": (16,), "lm_head": (40, 16)}
    return weights | {f"{name}.weight": torch.ones(shape) for name, shape in ends.items()}


def _configs(_: Path) -> list[bytes]:
    scaled: dict[str, Any] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled |= {"original_max_position_embeddings": 32}
    head = {"kind": "classification", "task": "class", "labels": ["a", "b"], "pool": "mean"}
    note = {"context": 32, "objective": head, "data": {"text_columns": ["text"]}}
    more: list[dict[str, Any]] = [{}, {"rope_scaling": scaled}, {"lmtool": note, "id2label": {"0": "a", "1": "b"}}]
    return [json.dumps(CONFIG | one).encode() for one in more]


def _read_config(folder: Path, content: bytes) -> None:
    _written(folder, "config.json", content)
    if not (folder / "model.safetensors").exists():
        _written(folder, "model.safetensors", save(_weights(), {"format": "pt"}))
        _written(folder, "head.safetensors", save({"head.weight": torch.zeros(2, 16)}))
    read_recipe_sections(open_published_model(folder))


def _read_weights(source: PublishedModel) -> None:
    for name in sorted(source.config.tensor_names):
        source.read_tensor(name)


def _read_shards(folder: Path, content: bytes) -> None:
    _written(folder, "config.json", json.dumps(CONFIG).encode())
    _written(folder, "model.safetensors", content)
    source = open_published_model(folder)
    read_recipe_sections(source)
    _read_weights(source)


def _ggufs(folder: Path) -> list[bytes]:
    path = folder / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    sizes: dict[str, Any] = {"context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32}
    sizes |= {"head_count": 2, "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "rope_freq_base": 10000.0}
    document = json.loads(Tokenizer.train(BpeTokenizer(vocab_size=300, sentinels=0), [TEXT]).to_json())
    tokens = ["<s>", "</s>", *list(document["model"]["vocab"])[7:]]
    of_tokenizer = {
        **{"vocab_size": len(tokens), "tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "token_list": tokens},
        **{"token_types": [3, 3, *[1] * (len(tokens) - 2)], "bos_token_id": 0, "eos_token_id": 1},
        "token_merges": [" ".join(merge) for merge in document["model"]["merges"]],
        "chat_template": chat_templates.CHATML,
    }
    for key, value in (sizes | of_tokenizer).items():
        getattr(writer, f"add_{key}")(value)
    parts = {
        **{f"blk.0.attn_{name}": (32, 32) for name in ("q", "k", "v", "output")},
        **{"blk.0.ffn_gate": (32, 32), "blk.0.ffn_up": (32, 32), "blk.0.ffn_down": (32, 32)},
        **{"blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,), "output_norm": (32,)},
        **{"token_embd": (len(tokens), 32), "output": (len(tokens), 32)},
    }
    for name, shape in parts.items():
        kind = np.float16 if len(shape) == 2 else np.float32
        writer.add_tensor(f"{name}.weight", np.ones(shape, dtype=kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [path.read_bytes()]


def _read_gguf(folder: Path, content: bytes) -> None:
    source = open_published_model(_written(folder, "a.gguf", content))
    read_recipe_sections(source)
    source.read_tokenizer()
    _read_weights(source)


# Tokenizers


def _tokenizers(_: Path) -> list[bytes]:
    specs: list[TrainedTokenizerSpecBase] = [
        BpeTokenizer(vocab_size=300, sentinels=2),
        WordPieceTokenizer(kind="wordpiece", vocab_size=120, sentinels=0),
        CharTokenizer(kind="char", sentinels=0),
        WordTokenizer(kind="word", vocab_size=60, sentinels=0),
    ]
    return [Tokenizer.train(spec, [TEXT]).to_json().encode() for spec in specs]


def _use(tokenizer: Tokenizer) -> None:
    ids, _ = tokenizer.encode_many([TEXT, "aa  bb", ""])
    tokenizer.decode(ids.tolist())
    tokenizer.decode(tokenizer.encode(TEXT[:60]))


def _use_tokenizer(path: str) -> None:
    _use(Tokenizer.load(Path(path)))


def _file_of_published(name: str, changed: str) -> ModelRunner:
    """A file of the tokenizer of a published model, beside its others."""

    def use(model: Path) -> None:
        read_published_tokenizer(model, "llama")
        tokenizer = Tokenizer.load(model)
        _use(tokenizer)
        ChatFormat.from_tokenizer_or_plain(tokenizer)

    return _file_of(lambda place: published(place, name), changed, use)


def _templates(_: Path) -> list[bytes]:
    names = ("CHATML", "QWEN", "LLAMA3", "MISTRAL", "GEMMA", "GENERATION")
    return [getattr(chat_templates, name).encode() for name in names]


def _read_template(folder: Path, content: bytes) -> None:
    """As the tokenizer's own template, on a conversation."""
    config = folder / "model" / "tokenizer_config.json"
    if not config.exists():
        published(folder / "model", "smollm2")
    whole = json.loads(config.read_bytes()) | {"chat_template": content.decode("utf-8", "replace")}
    config.write_text(json.dumps(whole))
    chat = ChatFormat.from_tokenizer_or_plain(Tokenizer.load(folder / "model"))
    chat.encode_prompt(MESSAGES[:1])
    chat.encode_conversation(MESSAGES)


PLAIN = b"nothing is drawn"
"""Content from which programs or steps are drawn, as from any other bytes, but from these the usual ones."""


class _Program:
    """A template that is drawn from bytes: whatever a template may do, on values that grow."""

    def __init__(self, content: bytes, number: int) -> None:
        self._draw = random.Random(hashlib.sha256(content + bytes([number])).digest())

    def source(self) -> str:
        blocks = "".join(f"{{% block b{n} %}}{self._body(0)}{{% endblock %}}" for n in range(2))
        macros = "".join(f"{{% macro m{n}(x) %}}{self._body(0)}{{{{ caller() }}}}{{% endmacro %}}" for n in range(2))
        start = "{% set ns = namespace(a='ab', b='a ' * 9, c=[1], d=(1,), e={'k': 'v'}, n=3) %}"
        return start + macros + blocks + self._body(1) + "{% for m in messages %}{{ m.content }}{% endfor %}"

    def _body(self, depth: int) -> str:
        return "".join(self._statement(depth) for _ in range(self._draw.choice((1, 1, 2))))

    def _statement(self, depth: int) -> str:
        name = f"ns.{self._draw.choice('abcden')}"
        inner = self._body(depth - 1) if depth else "x"
        value = self._value(2)
        return self._draw.choice(
            (
                *(f"{{% set {name} = {value} %}}" for _ in range(4)),
                *(f"{{% for i in {self._loops()} %}}{inner}{{% endfor %}}" for _ in range(2)),
                f"{{{{ {value} }}}}",
                f"{{% if {value} %}}{inner}{{% else %}}y{{% endif %}}",
                f"{{% set {name} %}}{inner}{{% endset %}}",
                f"{{% call m{self._draw.choice('01')}({value}) %}}{inner}{{% endcall %}}",
                f"{{% filter {self._draw.choice(sorted(sandbox._LINEAR_FILTERS))} %}}{inner}{{% endfilter %}}",
                f"{{{{ self.b{self._draw.choice('01')}() }}}}",
                f"{{% generation %}}{inner}{{% endgeneration %}}",
                f"{{% with y = {value} %}}{inner}{{% endwith %}}",
            )
        )

    def _loops(self) -> str:
        return f"range({self._draw.choice((3, 60, 5000))})" if self._draw.random() < 0.7 else self._value(2)

    def _value(self, depth: int) -> str:
        draw = self._draw
        if not depth or draw.random() < 0.2:
            return draw.choice(
                (*(f"ns.{name}" for name in "abcden"), *("'a'", "'\\n'", "7", "2.5", "'%9999999d'", "messages", "loop"))
            )
        a, b = self._value(depth - 1), self._value(depth - 1)
        number = draw.choice(("2", "-1", "1000", "999999999", "ns.n", "2305843009213693951"))
        names = sorted(
            sandbox._LINEAR_FILTERS | sandbox._ORDERING_FILTERS | sandbox._ITEM_FILTERS | sandbox._CHEAP_FILTERS
        )
        tests = sorted({*sandbox._TYPE_TESTS, *sandbox._NUMBER_TESTS, *sandbox._TEXT_TESTS, *sandbox._OPERATOR_TESTS})
        methods = sorted({method for _, several in sandbox._ALLOWED_METHODS for method in several})
        filtering, method, given = draw.choice(names), draw.choice(methods), draw.choice(("", a, number, f"{a}, {b}"))
        return draw.choice(
            (
                *(f"({a} {draw.choice(('+', '*', '~', '-', '%', '/', '//', '**'))} {b})" for _ in range(2)),
                *(f"({a} {draw.choice(('==', '<', '>=', '!=', 'in', 'not in', 'and', 'or'))} {b})" for _ in range(2)),
                *(f"[{a}, {a}]", f"({b}, {b})", f"{{'k': {a}, {draw.choice(('0', b))}: {b}}}", f"({a} * {number})"),
                *(f"({b} | {filtering}{f'({given})' if given else ''})" for _ in range(3)),
                *(f"({a}).{method}({given})" for _ in range(2)),
                f"({a} | map('{draw.choice(names)}') | list)",
                f"({a} | select('{draw.choice(tests)}'{draw.choice(('', f', {b}'))}) | list)",
                f"({a} is {draw.choice([name for name in tests if name.isidentifier()])})",
                f"({a})[{draw.choice((':', '1:', '::-1', '0', b))}]",
                f"dict([[{a}, {b}]])",
                f"({a} if {b} else {a})",
            )
        )


def _run_programs(_: Path, content: bytes) -> None:
    """Several short programs, since most end at an error of types, which is lmtool's where a model has the template.

    With a tenth of the work that templates may do, so that ten seconds are a hang.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "MAX_WORK_UNITS", 2_000_000)
        for number in range(8):
            source = chat_templates.CHATML if content == PLAIN else _Program(content, number).source()
            try:
                sandbox.SandboxedTemplate(source).render(messages=MESSAGES, add_generation_prompt=True)
            except MemoryError:
                raise
            except Exception:
                assert content != PLAIN


def _drawn_steps(draw: random.Random, kind: str, depth: int = 2) -> dict[str, Any]:
    """A step, or a sequence of steps, of a normalizer or a pre-tokenizer."""
    if depth and draw.random() < 0.6:
        key = "normalizers" if kind == "normalizer" else "pretokenizers"
        several = [_drawn_steps(draw, kind, depth - 1) for _ in range(draw.choice((1, 2, 4, 30)))]
        return {"type": "Sequence", key: several * draw.choice((1, 1, 3))}
    texts, patterns = (
        ("", "a", "e", "aa", "\u2581", " ", "\ufdfa", "e" * 400),
        ("(a+)+$", " {2,}", "(?=e)", r"\s+", "e*", "["),
    )
    pattern = {"String": draw.choice(texts)} if draw.random() < 0.5 else {"Regex": draw.choice((*patterns, r"\w"))}
    flags = {"behavior": draw.choice(("Isolated", "Removed", "MergedWithNext")), "invert": draw.random() < 0.3}
    byte_level = {"type": "ByteLevel", "add_prefix_space": draw.random() < 0.5, "trim_offsets": True, "use_regex": True}
    if kind == "pre_tokenizer":
        spaces = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
        cut = {"type": "Split", "pattern": pattern, **flags}
        fixed = {"type": "FixedLength", "length": draw.choice((0, 1, 5))}
        return draw.choice((cut, cut, byte_level, spaces, fixed, {"type": "Digits", "individual_digits": True}))
    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": True}
    rules = base64.b64encode(draw.randbytes(draw.choice((3, 40, 1028)))).decode()
    steps: tuple[dict[str, Any], ...] = (
        *[{"type": "Replace", "pattern": pattern, "content": draw.choice(texts)}] * 4,
        *({"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")),
        {"type": "Prepend", "prepend": draw.choice(texts)},
        {"type": "Strip", "strip_left": True, "strip_right": draw.random() < 0.5},
        {"type": "Precompiled", "precompiled_charsmap": rules},
        bert | {"lowercase": True},
    )
    return draw.choice(steps)


def _read_steps(folder: Path, content: bytes) -> None:
    """A published tokenizer with other steps of normalization and division, which are drawn from the content."""
    draw = random.Random(hashlib.sha256(content).digest())
    model = folder / "model"
    if not model.exists():
        published(model, "smollm2")
        (model / "tokenizer.json").rename(model / "whole.json")
    described = json.loads((model / "whole.json").read_bytes())
    kinds = draw.choice((("normalizer",), ("pre_tokenizer",), ("normalizer", "pre_tokenizer")))
    for kind in () if content == PLAIN else kinds:
        described[kind] = _drawn_steps(draw, kind)
    (model / "tokenizer.json").write_text(json.dumps(described))
    read_published_tokenizer(model, "llama")
    tokenizer = Tokenizer.load(model)
    _use(tokenizer)
    tokenizer.encode("aaaa " * 2000 + "b")


# Runs and caches


def _run(place: Path) -> None:
    """A run with a checkpoint at step 2."""
    recipe = load("default", ["data.train=[a.txt]"]).recipe
    files = {"recipe.yaml": dump_yaml(recipe).encode(), "tokenizer.json": b"{}"}
    with create_and_lock_run(place, run_info("default"), files) as run:
        run.rewind_and_start_session(step=0, command=["lmtool", "pretrain"], environment={"python": "3"})
        for step in (1, 2):
            run.metrics.append({"step": step, "loss": 2.0, "valid_loss": 1.5, "lr": 1e-3, "seconds": 0.5})
            run.samples.append({"step": step, "prompt": "One", "text": "One day"})
        state = {"recipe": recipe.model_dump(mode="json"), "tokens": 100, "seconds": 1.0}
        run.save_checkpoint(CheckpointContent(2, {"w": torch.ones(2)}, {}, state), keep_last=2)
        run.record_validation_and_prune_checkpoints(
            ValidationState(step=2, best_step=2, best_value=1.5, best_loss=1.5, stale=0)
        )
        run.record_session_end("finished")


SAVED = f"{CHECKPOINTS}/step-000002"


def _file_of_a_run(name: str) -> ModelRunner:
    def use(run: Path) -> None:
        list(find_damaged_run_files(run))
        found = Run.open(run)
        list(found.metrics.read_records())
        list(found.samples.read_records())
        assert found.last_validation is not None

    return _file_of(_run, name, use)


def _use_signed_state(run: Path) -> None:
    sign(run / SAVED)
    checkpoint = checkpoints.open_and_verify_checkpoint(run / SAVED)
    read_verified_or_checkpoint_recipe(Run.open(run), checkpoint)
    read_saved_state(checkpoint)


def _store(place: Path) -> None:
    ones = np.ones(1, np.int64)
    with StoreWriter(place, fingerprint="f", vocab_size=300) as writer:
        for _ in range(3):
            writer.append(EncodedChunk(np.arange(40, dtype=np.uint16), 40 * ones, 90 * ones, 9 * ones, True))
        writer.finish()


def _use_store(place: Path) -> None:
    store = TokenStore(place)
    store.read(0, min(20, len(store)))
    for number in islice(range(store.n_documents), 5):
        store.document_range(number)


WIDTH = 8


def _index_file(folder: Path, page_size: int = 512, n_texts: int = 60) -> Path:
    """The texts of an index, of pages so small that trees have several levels, and its vectors beside them."""
    folder.mkdir(exist_ok=True)
    vectors_ND = np.eye(n_texts, WIDTH, dtype="<f4")
    (folder / VECTORS).write_bytes(vectors_ND.tobytes())
    with closing(sqlite3.connect(folder / TEXTS)) as db, db:
        db.execute(f"PRAGMA page_size = {page_size}")
        db.executescript(SCHEMA)
        db.execute("INSERT INTO model VALUES (?, ?, ?)", ("runs/a@2", "c0", WIDTH))
        rows = [(n, f"a.txt:{n}", "a.txt", TEXT[: 9 * n], xxh3(vectors_ND[n].tobytes())) for n in range(n_texts)]
        db.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", rows)
    return folder / TEXTS


def _indexes(folder: Path) -> list[bytes]:
    kinds = ((512, 60), (1024, 3), (4096, 20))
    return [_index_file(folder / str(size), size, n_texts).read_bytes() for size, n_texts in kinds]


def _journals(folder: Path) -> list[bytes]:
    """What is left beside the texts by a process that is killed while it removes some."""
    file = _index_file(folder)
    with closing(sqlite3.connect(file)) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("DELETE FROM texts WHERE vector > 20")
        return [file.with_name(f"{TEXTS}-journal").read_bytes()]


def _search(folder: Path) -> None:
    for entries in Index(folder).find_nearest(np.eye(2, WIDTH, dtype="<f4"), 3):
        assert all(isinstance(entry.text, str) for entry in entries)


def _as_part_of_an_index(name: str) -> Callable[[Path, bytes], None]:
    """Search an index with this file, then remove a text of it."""

    def read(folder: Path, content: bytes) -> None:
        for left in folder.iterdir():
            left.unlink()
        _index_file(folder)
        _written(folder, name, content)
        _search(folder)
        remove_texts_by_id_or_source(folder, ["a.txt:1"])

    return read


READERS = {
    "recipe": ModelRunner(_recipes, _as_file("recipe.yaml", load)),
    "setting": ModelRunner(_valid(*SETTINGS), _read_setting),
    "csv table": ModelRunner(_valid(TABLE, TABLE.replace(",", ";")), _as_file("a.csv", _use_table)),
    "tsv table": ModelRunner(_valid(PAIRS), _as_file("a.tsv", _use_table)),
    "jsonl table": ModelRunner(_valid(_lines(ROWS), _lines(TURNS)), _as_file("a.jsonl", _use_table)),
    "parquet table": ModelRunner(_parquet, _as_file("a.parquet", _use_table)),
    "conll": ModelRunner(_valid(CONLL), _as_file("a.conll", _use_table)),
    "json table": ModelRunner(_valid(json.dumps(ROWS), json.dumps(ROWS, indent=2)), _as_file("a.json", _use_table)),
    "squad": ModelRunner(_valid(json.dumps(QUESTIONS)), _as_file("a.json", _use_table)),
    "txt corpus": ModelRunner(_valid(TEXT, TEXT.replace("\n", "\r\n\r\n")), _as_file("a.txt", _use_corpus)),
    "csv corpus": ModelRunner(_valid(TABLE), _as_file("a.csv", _use_corpus)),
    "jsonl corpus": ModelRunner(_valid(_lines(ROWS)), _as_file("a.jsonl", _use_corpus)),
    "parquet corpus": ModelRunner(_parquet, _as_file("a.parquet", _use_corpus)),
    "word vectors": ModelRunner(_valid(WORDS, f"5 3\n{WORDS}", BINARY), _as_file("a.vec", _use_vectors)),
    "prompts": ModelRunner(_valid(TEXT), _as_file("prompts.txt", partial(gather_prompts, []))),
    "records of generate": ModelRunner(_records, _as_file("texts.jsonl", read_generation_records)),
    "safetensors": ModelRunner(_valid(save(TENSORS, {"format": "pt"})), _as_file("model.safetensors", _use_tensors)),
    "published weights": ModelRunner(_valid(save(_weights(), {"format": "pt"})), _read_shards),
    "config.json": ModelRunner(_configs, _read_config),
    "gguf": ModelRunner(_ggufs, _read_gguf),
    "tokenizer.json": ModelRunner(_tokenizers, _as_file("tokenizer.json", _use_tokenizer)),
    **{
        f"{changed} of {name}": _file_of_published(name, changed)
        for name, changed in (
            *(("smollm2", "tokenizer.json"), ("gemma", "tokenizer.json"), ("mistral", "tokenizer.json")),
            *(("smollm2", "tokenizer_config.json"), ("llama3", "tokenizer_config.json")),
        )
    },
    "chat template": ModelRunner(_templates, _read_template),
    "program of a chat template": ModelRunner(_valid(PLAIN), _run_programs),
    "steps of a tokenizer": ModelRunner(_valid(PLAIN), _read_steps),
    **{name: _file_of_a_run(name) for name in ("run.json", "validated.json", "metrics.jsonl", "samples.jsonl")},
    "state.json": _file_of(_run, f"{SAVED}/state.json", _use_signed_state),
    "MANIFEST.json": _file_of(
        _run, f"{SAVED}/MANIFEST.json", lambda run: checkpoints.find_newest_valid_checkpoint(run / CHECKPOINTS)
    ),
    "store.json": _file_of(_store, "store.json", _use_store),
    "search index": ModelRunner(_indexes, _as_part_of_an_index(TEXTS)),
    "journal of an index": ModelRunner(_journals, _as_part_of_an_index(f"{TEXTS}-journal")),
    "vectors of an index": _file_of(_index_file, VECTORS, _search),
}
