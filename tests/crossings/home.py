"""A folder with everything that a crossing trains on: texts, tables of each kind of rows, word vectors, a tokenizer."""

import csv
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.campaigns.homes import make_home, settings
from tests.support.training import documents, words

RECIPE = """\
model: {kind: transformer, n_layers: 1, d_model: 16, n_heads: 2, context: 16}
tokenizer: {kind: char}
training: {steps: 6, batch_size: 6, device: cpu, precision: float32}
optimizer: {kind: adamw, lr: 0.003}
schedule: {kind: linear, warmup_steps: 3}
evaluation: {every: 3, tokens: 200, prompts: []}
checkpoint: {every: 2, keep_optimizer: true}
"""
STEPS = 6
SHORT = (
    *("training.epochs=null", f"training.steps={STEPS}", "training.batch_size=6", "evaluation.every=3"),
    *("evaluation.epochs=null", "checkpoint.every=2", "checkpoint.keep_optimizer=true", "training.device=cpu"),
    *("training.precision=float32", "schedule.warmup_steps=3", "evaluation.prompts=[]"),
)
"""Overrides that train a run from another one as briefly as the recipe does."""
TABLES = ("labels", "tags", "questions", "related", "pairs", "conversations")
FORMS = {"cp1252": ".cp1252", "bad rows": ".bad"}
"""Values of the axis `table` whose .csv file has another name."""
PARTS = {"": 36, ".valid": 9, ".test": 7}
"""Rows of the table to train on, to validate on, and to test on."""

_STOCK = ("cat", "dog", "mat", "ran", "sat", "home", "away", "naïve")


COMMANDS = (
    ("tokenize", "text.txt", "--kind", "bpe", "--vocab-size", "300", "-o", "tokens", "-q"),
    ("pretrain", "text.txt", "--recipe", "tiny.yaml", "-o", "runs/lm", "-q"),
    ("finetune", "labels.csv", "--from", "runs/lm", "-o", "runs/tuned", "-q", *settings(SHORT)),
    ("eval", "runs/tuned", "labels.csv", "--json"),
    ("generate", "the", "--run", "runs/lm", "--max-new-tokens", "2"),
    ("export", "runs/lm", "exported", "-q"),
    ("report", "runs/lm"),
    ("plan", "tiny.yaml", "--text", "text.txt", "-q"),
)


def build(folder: Path) -> None:
    """The home, of which crossings take copies."""
    rng = random.Random(3)
    tokens = sorted({*words(200).split(), *words(200)})
    vectors = [" ".join([token, *(f"{rng.gauss(0, 0.1):.4f}" for _ in range(16))]) for token in tokens if token != " "]
    texts: dict[str, str | bytes] = {"text.txt": documents(40), "other.txt": documents(30, seed=5)}
    texts |= {"vectors.vec": "\n".join([f"{len(vectors)} 16", *vectors]) + "\n", "tiny.yaml": RECIPE}
    for kind in TABLES:
        for part, n_rows in PARTS.items():
            texts |= _tables(kind, part, [_row(kind, random.Random(f"{kind}{part}{i}"), i) for i in range(n_rows)])
    make_home(folder, texts, COMMANDS)


def table_of(kind: str, form: str, part: str = "") -> str:
    """The file of a table. form: a value of the axis `table`."""
    if kind == "tags":
        return f"tags{part}.conll" if form != "jsonl" else f"tags{part}.jsonl"
    if kind == "questions":
        return f"questions{part}.json" if form != "jsonl" else f"questions{part}.jsonl"
    if kind == "conversations" or form == "jsonl":
        return f"{kind}{part}.jsonl"
    return f"{kind}{part}{FORMS.get(form, '')}.csv"


def _row(kind: str, rng: random.Random, number: int) -> dict[str, Any]:
    """A row; its length is between one word and more than a context."""
    text = " ".join(rng.choice(_STOCK) for _ in range(rng.choice((1, 2, 3, 5, 9, 17))))
    match kind:
        case "labels":
            topics = [topic for topic in ("pets", "places") if rng.random() < 0.6]
            colour = ("red", "green", "blue")[number % 3]
            label = "ab"[number % 2]
            return {"text": text, "label": label, "topics": ";".join(topics), "stars": number % 5, "colour": colour}
        case "tags":
            tokens = text.split()
            return {"tokens": tokens, "tags": ["B-PET" if token in ("cat", "dog") else "O" for token in tokens]}
        case "questions":
            answer = rng.choice(text.split())
            answers = {"text": [answer], "answer_start": [text.index(answer)]}
            return {"question": f"who {number % 7}", "context": text, "answers": answers}
        case "related":
            positive, negative = " ".join(reversed(text.split()[:4])), " ".join(rng.choices(_STOCK, k=3))
            return {"anchor": text, "positive": f"{positive} {number}", "negative": negative}
        case "conversations":
            turns = {"user": text, "assistant": " ".join(reversed(text.split()[:3]))}
            return {"messages": [{"role": role, "content": content} for role, content in turns.items()]}
    return {"source": text, "target": " ".join(reversed(text.split()[:4]))}


def _tables(kind: str, part: str, rows: Sequence[dict[str, Any]]) -> dict[str, str | bytes]:
    """The files of a table, by their names."""
    name = f"{kind}{part}"
    files: dict[str, str | bytes] = {f"{name}.jsonl": "\n".join(map(json.dumps, rows)) + "\n"}
    if kind == "tags":
        blocks = ["\n".join(map(" ".join, zip(row["tokens"], row["tags"], strict=True))) for row in rows]
        files[f"{name}.conll"] = "\n\n".join(blocks) + "\n"
    elif kind == "questions":
        paragraphs = [{"context": row["context"], "qas": [_question(row, i)]} for i, row in enumerate(rows)]
        files[f"{name}.json"] = json.dumps({"version": "2.0", "data": [{"title": "t", "paragraphs": paragraphs}]})
    elif kind != "conversations":
        for form in ("", *FORMS.values()):
            file = io.StringIO(newline="")
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
            if form == ".bad":
                file.write("too,few\n" if len(rows[0]) != 2 else "one\n")
            files[f"{name}{form}.csv"] = file.getvalue().encode("cp1252" if form == ".cp1252" else "utf-8")
    return files


def _question(row: dict[str, Any], number: int) -> dict[str, Any]:
    (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
    given = [] if number % 6 == 5 else [{"text": text, "answer_start": start}]
    return {"id": str(number), "question": row["question"], "answers": given, "is_impossible": not given}
