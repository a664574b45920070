"""The wording of the command line: refusals.txt has commands and their errors, outputs.txt what commands print.

    python -m tests.cli.golden      # writes both anew; the change is reviewed as a diff

A case is a line `$ lmtool ...`, with `< FILE` at its end where standard input is a file. Below it stand its exit code
with the code of its error unless that is 0, then each file that it makes or changes (`+`), each line on standard output
(`|`) and each on standard error. A new case is written as its first line alone. Of a part of outputs.txt the cases run
in their order, in one copy of the workbench. What differs from machine to machine is replaced by `N`.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from lmtool.runs.directory import Run
from lmtool.runs.saving import CheckpointContent
from tests.support.cli import RUN, SENTENCES, SMALL, Outcome, copied_run, exit_code_of, film_rows, write_table

REFUSALS, OUTPUTS = (Path(__file__).with_name(name) for name in ("refusals.txt", "outputs.txt"))
WRITES = "LMTOOL_WRITE_GOLDEN"
"""The variable with which the tests write the files rather than compare with them."""

Parts = dict[str, dict[str, str]]
"""By title of a part and command what is said below it."""


def read_parts(file: Path) -> Parts:
    parts: Parts = {}
    for part in file.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, _, rest = part.partition("\n")
        blocks = (block.partition("\n") for block in rest.split("\n$ lmtool")[1:])
        parts[title] = {command.strip(): said.rstrip("\n") for command, _, said in blocks}
    return parts


def write_parts(file: Path, said: Parts) -> None:
    """Writes what cases say now; others stay as they are."""
    head = file.read_text(encoding="utf-8").partition("\n## ")[0].rstrip("\n")
    parts = {title: cases | said.get(title, {}) for title, cases in read_parts(file).items()}
    text = ""
    for title, cases in parts.items():
        blocks = ("\n".join(filter(None, (f"$ lmtool {command}", below))) for command, below in cases.items())
        text += f"\n## {title}\n\n" + "\n\n".join(blocks) + "\n"
    file.write_text(head + "\n" + text, encoding="utf-8")


def describe_refusal(outcome: Outcome) -> str:
    error = "none" if outcome.error is None else outcome.error.code
    said = re.sub(r"(?<=there is )[\d.]+(?= GB)", "N", outcome.err)  # the memory of the machine
    said = re.sub(r"[0-9a-f]{12}(?=\.\.\.)", "N", said)  # digests of weights, which other processors compute otherwise
    return f"{outcome.code} {error}\n{said.rstrip()}"


VARYING = {
    r"(/[^/\s,']+)+/pytest-\d+(/popen-gw\d+)?": "...",  # temporary folders, also of several processes of tests
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00)?": "N",  # moments
    r"\d{4}-\d\d-\d\d-(\w+)-[0-9a-f]{4}(?![\w-])": r"N-\1-N",  # names of runs
    r"(lmtool [\d.]+), python .*": r"\1 ...",  # the environment of a session
    r"(\"(?:platform|processor)\":) \"[^\"]*\"": r"\1 N",
    r"[0-9a-f]{12,}": "N",  # digests
    r"\bmemory: \d+": "memory: N",  # of the machine
    r"\b\d+(\.\d+)?e[+-]?\d+": "N",
    r"(per second|\"\w+_per_second\":|\"pid\":|\"bytes\":|bytes:|seed:?|\"seed\":)(\s+[\d,]{3,})+": r"\1 N",
    r"\b\d+(\.\d+)+\b": "N",  # results and versions
    r"\bN(e[+-]?\d+|\+\w+)|\d+e-\d+": "N",
    r"[\d,]+(?= (tokens|rows|pairs|units)/s)": "N",
    r"(?<!\w)\d+:\d\d(?!\d)": "N",  # times
    r"\b[\dN,]+ (ms|s|seconds|minutes|hours)\b": "N s",
    r"\b[\dN,]+ (bytes|kB|MB|GB)\b": "N bytes",
    r"\brow \d+:.* predicted as .*": "row N",
    r"(?<![\w-])-(?=N\b)": "",  # signs and predictions of models that have hardly learnt, and with them the temperature
    r"(\"(?:activations|peak)\":) \d+": r"\1 N",  # which kernels in C make smaller
    r"^\| (no|yes)( +\d+){2}$": r"| \1  N  N",
    r",(no|yes),N,N$": ",N,N,N",
    r" +temperature N": "",
    r" {2,}": "  ",
}
"""What differs from machine to machine, and what stands for it."""
LEFT_OUT = r"step \d+/|\w+: \d+ %|time: about|less than one pass|\| +-?[\dN]* *\|[ .o]*$|\| threads: |\| torch: "
"""Lines of progress, which come by the clock, of charts, and of the machine."""


def describe_output(outcome: Outcome, files: list[str]) -> str:
    """What is below a case of outputs.txt; lines that are alike stand there once."""
    lines = [f"{outcome.code} {outcome.error.code if outcome.error else 'none'}"] if outcome.code else []
    lines += [*(f"+ {file}" for file in files), *(f"| {line}" for line in split_output(outcome.out))]
    normalized = (normalize(line).rstrip() for line in (*lines, *outcome.err.splitlines()))
    return "\n".join(line for line, _ in groupby(normalized) if line.strip("| ") and not re.match(LEFT_OUT, line))


def split_output(text: str) -> list[str]:
    """The lines of an output; of an object of JSON, and of a line that is one, a line for each key."""
    documents = [text] if text.startswith(("{\n", "[\n")) else text.splitlines()
    lines = []
    for document in documents:
        if document.startswith(("{", "[{", "[\n")):
            found = json.loads(document)
            first = found[0] if isinstance(found, list) else found
            lines += ["{", *(f"{key}: {json.dumps(shape_of(one), ensure_ascii=False)}" for key, one in first.items())]
        else:
            lines.append(document)
    return lines


def normalize(line: str) -> str:
    """A line without what varies."""
    line = line.replace(str(Path.cwd().parent), "...")
    for pattern, constant in VARYING.items():
        line = re.sub(pattern, constant, line)
    return line


def shape_of(value: Any) -> Any:
    """Keys and kinds of a value of JSON; texts and whole numbers as they are."""
    match value:
        case dict():
            return {key: shape_of(one) for key, one in value.items()}
        case list():
            shapes = [shape_of(one) for one in value]
            return shapes[:1] + ["..."] * (len(shapes) > 1)
        case float():
            return "N"
    return value


RECIPES: dict[str, dict[str, object]] = {
    "small.yaml": {
        "model": {"kind": "transformer", "n_layers": 1, "d_model": 16, "n_heads": 2, "context": 16},
        "tokenizer": {"kind": "bpe", "vocab_size": 300},
        "training": {"steps": 4, "batch_size": 4, "precision": "float32", "device": "cpu"},
        "evaluation": {"every": 2, "tokens": 200, "prompts": [], "baseline": False},
        "checkpoint": {"every": 2, "keep_optimizer": True},
    },
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
    "prompts.txt": b"good\n\nbad\n",
    "script.txt": b"good\n/help\n/system Be kind.\n/reset\n/save\n/frob\n/save talk\n/exit\nbad\n",
    "list.lark": b'start: word (", " word)*\nword: "the" | "map"\n',
}
ANSWERS = [[], [{"text": "Ida", "answer_start": 0}]]
ASKED = [{"id": str(i), "question": f"Who {i}?", "answers": ANSWERS[i % 2]} for i in range(30)]
QUESTIONS = {"data": [{"paragraphs": [{"context": "Ida saw the sea.", "qas": ASKED}]}]}


def make_workbench(home: Path, trained: Path, counted: Path) -> None:
    """What the commands of the files name, in a working directory."""
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
    write_table(home / "prices.csv", [("no", 0, 1), ("yes", 1000, 0)], "true,no,yes")
    write_table(home / "few.csv", [("good film", "yes"), ("bad film", "no"), ("a good one", "yes")])
    write_table(home / "topics.csv", [(f"film {i}", ("x", "x;y")[i % 2]) for i in range(40)])
    doubled = [*film_rows(), *film_rows(3), ("odd", "yes"), ("odd", "no"), ("even", "yess")]
    write_table(home / "doubled.csv", doubled)
    (home / "cp1252.csv").write_bytes("text,label\ntrès,oui\nmauvais,non\n".encode("cp1252"))
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
    (home / "talk.jsonl").write_text("\n".join([json.dumps({"messages": talk})] * 20))
    (home / "rows.conll").write_text("Anna B-PER\nsold O\nmaps O\n\nTom B-PER\nran O\n\n" * 20)
    (home / "city.conll").write_text("Otto B-CITY\n")
    (home / "cut.conll").write_text("Otto B-PER\nran\n")
    (home / "questions.json").write_text(json.dumps(QUESTIONS))
    (home / "taken.html").write_text("mine")
    (home / "bad.json").write_text('{"uniqueItems": true}')
    (home / "bad.lark").write_text("start: word")
    (home / "novel.txt").write_text("mine")
    (home / "records.jsonl").write_text("{}\n")
    make_damaged_runs(home / "runs" / RUN, home / "damaged")
    one_step = ("-s", "training.steps=1", "-s", "tokenizer.vocab_size=310")
    for words in (
        (
            "finetune",
            "films.csv",
            "-r",
            "linear",
            "-s",
            "optimizer.l2=1",
            "-s",
            "training.device=cpu",
            "-q",
            "-o",
            "films",
        ),
        ("search", "index", "stories.txt", "--run", RUN, "-o", "index", "-q"),
        ("pretrain", "stories.txt", *SMALL, *one_step, "-q", "-o", "b"),
    ):
        assert exit_code_of(["lmtool", *words]) == 0, words
    (home / "runs" / ".elsewhere").unlink()  # so that the last run is the one in runs/


def copy_workbench(workbench: Path, home: Path) -> None:
    """A copy that commands may change, without most of the damaged runs."""
    shutil.copytree(
        workbench, home, ignore=shutil.ignore_patterns("*flipped", "nan", "tokens", "late.txt"), dirs_exist_ok=True
    )


def stamps(home: Path) -> dict[str, int]:
    """When files and folders changed: of the home all, of the folder of runs the runs."""
    paths = [path for path in (*home.iterdir(), *(home / "runs").iterdir()) if not path.name.startswith(".")]
    newest = {path: max((one.stat().st_mtime_ns for one in path.rglob("[!.]*")), default=0) for path in paths}
    return {str(path.relative_to(home)): max(newest[path], path.stat().st_mtime_ns) for path in paths}


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
        state = CheckpointContent(8, weights, checkpoint.load_optimizer(), checkpoint.load_state(), 8)
        opened.save_checkpoint(state, keep_last=3)


def iterate_refusals() -> Iterator[tuple[str, str, str]]:
    """Part, command and what it says of each case of refusals.txt."""
    for part, cases in read_parts(REFUSALS).items():
        yield from ((part, command, said) for command, said in cases.items())


if __name__ == "__main__":
    os.environ[WRITES] = "1"
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_golden.py"))]))
