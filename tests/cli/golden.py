"""The wording of errors: refusals.txt holds commands and what each of them says.

    python -m tests.cli.golden      # writes it anew; the change is reviewed as a diff

A case is a line `$ lmtool ...`; below it stand its exit code, the code of the error, and the lines on standard error. A
new case is written as its first line alone.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lmtool.run.directory import Run
from lmtool.run.saving import Snapshot
from tests.support.cli import RUN, SENTENCES, SMALL, copied_run, exit_code_of, film_rows, write_table

FILE = Path(__file__).with_name("refusals.txt")
WRITES = "LMTOOL_WRITE_REFUSALS"
"""The variable with which the test writes the file rather than compares with it."""


@dataclass(frozen=True)
class Case:
    """A command as typed, the part of the file where it stands, and what it says."""

    command: str
    part: str
    told: str


def read_cases() -> Iterator[Case]:
    """The cases of the file, in their order."""
    for part in FILE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, rest = part.partition("\n")
        for block in rest.split("\n$ lmtool")[1:]:
            command, _, told = block.partition("\n")
            yield Case(command.strip(), title, told.rstrip("\n") + "\n")


def write_cases(told: dict[tuple[str, str], str]) -> None:
    """Writes what cases say now, by part and command; others stay as they are."""
    head = FILE.read_text(encoding="utf-8").partition("\n## ")[0]
    parts: dict[str, list[str]] = {}
    for case in read_cases():
        said = told.get((case.part, case.command), case.told)
        parts.setdefault(case.part, []).append(f"$ lmtool {case.command}\n{said}")
    text = "".join(f"\n## {title}\n\n" + "\n".join(cases) for title, cases in parts.items())
    FILE.write_text(head.rstrip("\n") + "\n" + text, encoding="utf-8")


RECIPES: dict[str, dict[str, object]] = {
    "pairs.yaml": {
        "model": {"kind": "recurrent", "shape": "encoder-decoder", "cell": "gru", "d_model": 16, "context": 16},
        "objective": {"kind": "seq2seq"},
        "tokenizer": {"kind": "word", "vocab_size": 60},
        "training": {"steps": 1, "batch_size": 4, "device": "cpu"},
    },
    "tags.yaml": {
        "model": {"kind": "transformer", "shape": "encoder", "n_layers": 1, "d_model": 16, "n_heads": 2, "context": 24},
        "objective": {"kind": "tagging"},
        "tokenizer": {"kind": "word", "vocab_size": 90},
        "training": {"steps": 1, "batch_size": 4, "device": "cpu"},
    },
    "misspelt.yaml": {
        "model": {"kind": "transformer", "n_layers": 1, "d_model": 16, "n_haeds": 2, "context": 16},
        "training": {"steps": 2, "batch_size": 2},
    },
}
TEXTS: dict[str, bytes] = {
    "texts/empty.txt": b"",
    "texts/blank.txt": b"  \n\n \n",
    "texts/binary.txt": b"\x89PNG\r\n\x1a\n\0\0\0",
    "texts/latin.txt": "café au lait".encode("latin-1"),
    "texts/late.txt": b"a line\n" * 50_000 + b"caf\xe9\n",
    "texts/cut.txt": "a moon 🌙".encode()[:-1],
    "texts/utf16.txt": "text".encode("utf-16"),
    "texts/body.csv": b"id,Body\n1,text\n",
    "texts/quotes.csv": b'text\n"abc\n',
    "texts/rows.jsonl": b'{"text": "a"}\n{"text":\n',
    "texts/digits.jsonl": b'{"text": ' + b"1" * 5000 + b"}\n",
    "texts/list.jsonl": b"[1, 2]\n",
    "texts/short.txt": b"It rained.",
    "texts/x.txt": b"x",
}


def make_workbench(home: Path, trained: Path, counted: Path) -> None:
    """What the commands of the file name, in a working directory."""
    copied_run(trained, home)
    shutil.copytree(counted, home / "counts")
    for name, content in TEXTS.items():
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_bytes(content)
    for name, recipe in RECIPES.items():
        (home / name).write_text(json.dumps(recipe, indent=1), encoding="utf-8")
    (home / "stories.txt").write_text("\n".join(SENTENCES * 2), encoding="utf-8")
    write_table(home / "films.csv", film_rows())
    write_table(home / "numbers.csv", [(f"film {i}", i / 7) for i in range(40)])
    write_table(home / "pairs.csv", [(f"say {i}", i) for i in range(40)], "source,target")
    write_table(home / "two.csv", [(f"a {i}", f"b {i}", "yes") for i in range(4)], "text,more,label")
    write_table(home / "ragged.csv", [("one", "yes"), ("two", "no", "more"), ("three", "no")])
    write_table(home / "words.csv", [("nowhere", "a", 1), ("e", "never", 2)], "word1,word2,score")
    write_table(home / "costs.csv", [("no", 0, 1), ("yes", "dear", 0)], "true,no,yes")
    (home / "cp1252.csv").write_bytes("text,label\ntrès,oui\nmauvais,non\n".encode("cp1252"))
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
    (home / "talk.jsonl").write_text("\n".join([json.dumps({"messages": talk})] * 20))
    (home / "rows.conll").write_text("Anna B-PER\nsold O\nmaps O\n\nTom B-PER\nran O\n\n" * 20)
    (home / "city.conll").write_text("Otto B-CITY\n")
    (home / "cut.conll").write_text("Otto B-PER\nran\n")
    (home / "taken.html").write_text("mine")
    (home / "bad.json").write_text('{"uniqueItems": true}')
    (home / "bad.lark").write_text("start: word")
    (home / "novel.txt").write_text("mine")
    (home / "records.jsonl").write_text("{}\n")
    make_damaged_runs(home / "runs" / RUN, home / "damaged")
    for words in (
        ("finetune", "films.csv", "-r", "linear", "-s", "training.device=cpu", "-q", "-o", "films"),
        ("search", "index", "stories.txt", "--run", RUN, "-o", "index", "-q"),
        (
            "pretrain",
            "stories.txt",
            *SMALL,
            "-s",
            "training.steps=1",
            "-s",
            "tokenizer.vocab_size=310",
            "-q",
            "-o",
            "b",
        ),
    ):
        assert exit_code_of(["lmtool", *words]) == 0, words
    (home / "runs" / ".elsewhere").unlink()  # so that the last run is the one in runs/


def make_damaged_runs(run: Path, folder: Path) -> None:
    """Copies of a run, each with another damage."""
    for name in ("flipped", "all-flipped", "unlisted", "empty", "tokens", "nan"):
        shutil.copytree(run, folder / name)
    newest = Path("checkpoints") / "step-000006"
    for path in (folder / "flipped" / newest, *(folder / "all-flipped" / "checkpoints").iterdir()):
        content = bytearray((path / "model.safetensors").read_bytes())
        content[len(content) // 2] ^= 4
        (path / "model.safetensors").write_bytes(content)
    (folder / "unlisted" / newest / "MANIFEST.json").unlink()
    shutil.rmtree(folder / "empty" / "checkpoints")
    assert exit_code_of(["lmtool", "tokenize", "stories.txt", "--kind", "char", "-o", "chars", "-q"]) == 0
    shutil.copy("chars/tokenizer.json", folder / "tokens" / "tokenizer.json")
    with Run.open(folder / "nan") as opened:
        opened.lock()
        checkpoint, _ = opened.find_newest_checkpoint()
        weights = checkpoint.load_model()
        next(iter(weights.values())).view(-1)[3] = float("nan")
        state = Snapshot(8, weights, checkpoint.load_optimizer(), checkpoint.load_state(), 8)
        opened.save_checkpoint(state, keep_last=3)


if __name__ == "__main__":
    os.environ[WRITES] = "1"
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_refusals.py"))]))
