"""Errors of the command line: an exit code, at most three lines, and no run is changed."""

import gzip
import io
import json
import re
import socket
import sys

import pytest
import torch

from lmtool.cli import to_lmtool_error
from lmtool.run.directory import Run
from lmtool.run.saving import Snapshot
from tests.cli.conftest import RUN, SMALL, contents

USAGE, DATA, CHECKPOINT, ENVIRONMENT, NOT_FINITE = 2, 3, 4, 5, 6


# Text

BAD_TEXTS = {
    "empty.txt": (b"", ["the file holds no text"]),
    "blank.txt": (b"  \n\n \n", ["the file holds no text"]),
    "binary.txt": (b"\x89PNG\r\n\x1a\n\0\0\0", ["binary", "NUL byte at offset 8"]),
    "program": (b"text " * 40_000 + b"\0", ["binary", "NUL byte at offset 200000"]),
    "latin.txt": ("café au lait".encode("latin-1"), ["not valid UTF-8", "0xe9", "offset 3"]),
    "late.txt": (b"a line\n" * 50_000 + b"caf\xe9\n", ["not valid UTF-8", "0xe9", "offset 350003"]),
    "cut.txt": ("a moon 🌙".encode()[:-1], ["not valid UTF-8", "offset 7"]),
    "latin.txt.gz": (gzip.compress("café".encode("latin-1")), ["not valid UTF-8", "offset 3"]),
    "damaged.txt.gz": (gzip.compress(b"text " * 999)[:-20], ["gzip"]),
    "utf16.txt": ("text".encode("utf-16"), ["UTF-16"]),
    "rows.csv": (b"id,Body\n1,text\n", ["no column 'text'", "rows.csv:1", "--column"]),
    "quotes.csv": (b'text\n"abc\n', ["a quote opens here and is never closed", "quotes.csv:2"]),
    "rows.jsonl": (b'{"text": "a"}\n{"text":\n', ["not JSON", "rows.jsonl:2"]),
    "digits.jsonl": (b'{"text": ' + b"1" * 5000 + b"}\n", ["too many digits", "digits.jsonl:1"]),
    "list.jsonl": (b"[1, 2]\n", ["not a JSON object", "list.jsonl:1"]),
    "table.parquet": (b"text\nabc\n", ["not a Parquet file"]),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", BAD_TEXTS)
@pytest.mark.parametrize("command", ["pretrain", "tokenize", "eval"])
def test_text_that_cannot_be_read(lmtool, run, home, command, name):
    content, words = BAD_TEXTS[name]
    (home / name).write_bytes(content)
    arguments = ["eval", "last"] if command == "eval" else [command]
    lines = lmtool.refuses(DATA, *arguments, name, words=[*words, name])
    assert len(lines) == 3


@pytest.mark.parametrize("name", ["n" * 5000, "folder/" * 700 + "file.txt"])
@pytest.mark.parametrize("command", [["pretrain"], ["finetune"], ["recipes", "show"], ["predict", "last"], []])
def test_a_very_long_name_is_shortened(lmtool, run, home, command, name):
    done = lmtool(*command, name)
    assert done.code in (USAGE, DATA, CHECKPOINT, ENVIRONMENT)
    assert 0 < max(map(len, done.err.splitlines())) <= 650


@pytest.mark.parametrize("arguments", [["pretrain"], ["tokenize"], ["eval", "last"]])
def test_a_missing_file(lmtool, run, home, arguments):
    (home / "stories.txt").write_text("text")
    lmtool.refuses(
        DATA, *arguments, "storeis.txt", words=["does not exist", "storeis.txt", "did you mean stories.txt?"]
    )
    lmtool.refuses(DATA, *arguments, "no/where.txt", words=["does not exist", "no/where.txt", "no folder no"])
    lmtool.refuses(DATA, *arguments, "*.text", words=["no file matches", "'*.text'"])


def test_a_missing_validation_file(lmtool, home, corpus):
    lmtool.refuses(DATA, "pretrain", corpus, *SMALL, "--valid", "valid.txt", words=["does not exist", "valid.txt"])


def test_a_text_shorter_than_the_context(lmtool, home):
    (home / "short.txt").write_text("It rained.")
    words = ["training text has 9 tokens", "context of 16 needs 17", "short.txt", "model.context"]
    lmtool.refuses(DATA, "pretrain", "short.txt", "-s", "model.context=16", "-s", "tokenizer.kind=char", words=words)


def test_a_text_too_short_to_hold_out(lmtool, home):
    (home / "x.txt").write_text("x")
    lmtool.refuses(DATA, "pretrain", "x.txt", *SMALL, words=["too short", "x.txt", "data.valid"])


# Recipe

RECIPE = """\
model:
  kind: transformer
  n_layers: 1
  d_model: 16
  n_heads: 2
  context: 16
training:
  steps: 2
  batch_size: 2
optimizer:
  lr: 1e-3
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("n_heads: 2", "n_haeds: 2", ["unknown key", "did you mean n_heads?"]),
        ("n_heads: 2", "n_heads: 3", ["model.n_heads", "3 does not divide d_model 16"]),
        ("lr: 1e-3", "lr: abc", ["optimizer.lr", "'abc'"]),
        ("n_layers: 1", "n_layers: 1\n  vocab_size: 1000000000000", ["model.vocab_size", "1,000,000,000,000", "GB"]),
    ],
)
def test_a_wrong_recipe(lmtool, home, corpus, old, new, words):
    (home / "mine.yaml").write_text(RECIPE.replace(old, new))
    (line,) = lmtool.refuses(USAGE, "pretrain", corpus, "--recipe", "mine.yaml", words=words)
    number = 1 + RECIPE[: RECIPE.index(old)].count("\n") + new.count("\n")
    assert re.match(rf"mine\.yaml:(1|{number}): ", line)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.n_haeds=2", ["unknown key", "did you mean model.n_heads?"]),
        ("model.n_heads=3", ["3 does not divide d_model 16"]),
        ("optimizer.lr=abc", ["optimizer.lr", "'abc'"]),
        ("tokenizer.vocab_size=1000000000000", ["tokenizer.vocab_size", "too much", "GB"]),
        ("model.d_model=1000000000000", ["model.d_model", "too much", "GB"]),
    ],
)
def test_a_wrong_override(lmtool, home, corpus, override, words):
    (line,) = lmtool.refuses(USAGE, "pretrain", corpus, *SMALL, "-s", override, words=words)
    assert line.startswith(f"-s {override}: ")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "word"])
def test_a_vocabulary_that_no_text_gives(lmtool, home, corpus, kind):
    words = ["1,000,000,000,000 entries", "tokenizer.vocab_size"]
    lmtool.refuses(USAGE, "tokenize", corpus, "--kind", kind, "--vocab-size", 10**12, words=words)


def test_an_unknown_recipe(lmtool, home, corpus):
    words = ["no recipe 'tinny'", "shakespeare-char", "did you mean tiny"]
    lmtool.refuses(USAGE, "pretrain", corpus, "--recipe", "tinny", words=words)


# Folders


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run"])
def test_an_output_folder_that_cannot_be_made(lmtool, home, corpus, monkeypatch, place):
    (home / "file").write_text("mine")
    words = ["cannot write", place]
    lmtool.refuses(ENVIRONMENT, "pretrain", corpus, *SMALL, "-o", place, words=[*words, "-o"])
    lmtool.refuses(ENVIRONMENT, "tokenize", corpus, "-o", place, words=[*words, "-o"])
    with monkeypatch.context() as patch:
        patch.setenv("LMTOOL_RUNS", place)
        lmtool.refuses(ENVIRONMENT, "pretrain", corpus, *SMALL, words=words)
    with monkeypatch.context() as patch:
        patch.setenv("LMTOOL_CACHE", place)
        lmtool.refuses(ENVIRONMENT, "tokenize", corpus, words=[*words, "LMTOOL_CACHE"])
    assert (home / "file").read_text() == "mine"


def test_an_output_folder_that_is_a_run(lmtool, run, corpus):
    words = ["already holds run.json", f"runs/{RUN}", "lmtool resume"]
    lmtool.refuses(USAGE, "pretrain", corpus, *SMALL, "-o", f"runs/{RUN}", words=words)


def test_an_output_folder_with_other_tokens(lmtool, home, corpus):
    (home / "other.txt").write_text("Quite another text, for once.\n" * 20)
    lmtool.succeeds("tokenize", corpus, "-o", "tokens")
    before = contents(home / "tokens")
    lmtool.refuses(USAGE, "tokenize", "other.txt", "-o", "tokens", words=["another tokenizer", "tokens", "-o"])
    again = ["tokenize", "other.txt", "--tokenizer", "tokens", "-o", "tokens"]
    lmtool.refuses(USAGE, *again, words=["other tokens", "tokens/train", "-o"])
    assert contents(home / "tokens") == before


# Runs and checkpoints

READERS = [["generate", "The", "--run"], ["resume"], ["eval"]]


def reading(command, reference, corpus):
    return [*command, reference, *([corpus] if command == ["eval"] else [])]


@pytest.mark.parametrize("command", [*READERS, ["runs", "show"]])
def test_an_unknown_run(lmtool, run, corpus, command):
    (run.parent / "notes").mkdir()
    name = RUN.replace("tiny", "tny")
    words = [f"no run called '{name}'", f"similar: {RUN}", "lmtool runs ls"]
    lmtool.refuses(CHECKPOINT, *reading(command, name, corpus), words=words)
    lmtool.refuses(CHECKPOINT, *reading(command, "runs/notes", corpus), words=["not a run", "runs/notes"])


@pytest.mark.parametrize("command", READERS)
def test_no_run_at_all(lmtool, home, corpus, command):
    words = ["no last run", "there are no runs yet in the folder runs", "lmtool pretrain TEXT"]
    lmtool.refuses(CHECKPOINT, *reading(command, "last", corpus), words=words)
    lmtool.refuses(CHECKPOINT, *reading(command, "mine", corpus), words=["no run called 'mine'", "lmtool pretrain"])


@pytest.mark.parametrize("command", READERS)
def test_a_run_without_a_checkpoint(lmtool, run, corpus, command):
    for path in (run / "checkpoints").iterdir():
        path.rename(run / path.name)
    words = ["has no checkpoint yet", f"runs/{RUN}/checkpoints"]
    lmtool.refuses(CHECKPOINT, *reading(command, "last", corpus), words=words)


@pytest.mark.parametrize("command", READERS)
def test_a_checkpoint_that_is_not_there(lmtool, run, corpus, command):
    words = ["no checkpoint 'step-000005'", "step-000002, step-000004, step-000006"]
    reference = f"runs/{RUN}/checkpoints/step-000005"
    lmtool.refuses(CHECKPOINT, *reading(command, reference, corpus), words=words)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def remove(path):
    path.unlink()


DAMAGES = [
    (truncate, "model.safetensors", "truncated"),
    (flip, "model.safetensors", "SHA-256"),
    (flip, "state.json", "state.json"),
    (remove, "MANIFEST.json", "missing"),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", READERS)
@pytest.mark.parametrize(("damage", "name", "how"), DAMAGES, ids=lambda value: getattr(value, "__name__", value))
def test_a_damaged_checkpoint(lmtool, run, corpus, command, damage, name, how):
    """When given, it is an error; otherwise the one before it is used, with a warning."""
    newest = run / "checkpoints" / "step-000006"
    damage(newest / name)
    before = contents(run)
    named = f"runs/{RUN}/checkpoints/step-000006"
    lmtool.refuses(CHECKPOINT, *reading(command, named, corpus), words=[how, named, "name another checkpoint"])
    outcome = lmtool.succeeds(*reading(command, "last", corpus), "--quiet")
    (line,) = outcome.err.splitlines()
    assert line.startswith("warning: skipped the damaged checkpoint step-000006: ")
    assert how in line
    after = contents(run)
    kept = {path: content for path, content in before.items() if path.startswith("checkpoints/step-000004/")}
    assert kept
    assert kept.items() <= after.items()
    # The damaged checkpoint is not deleted.
    assert {content for path, content in before.items() if "step-000006" in path} <= set(after.values())


@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_damaged_optimizer_stops_resuming_only(lmtool, run, corpus, damage):
    damage(run / "checkpoints" / "step-000006" / "optimizer.safetensors")
    named = f"runs/{RUN}/checkpoints/step-000006"
    lmtool.refuses(CHECKPOINT, "resume", named, words=["optimizer.safetensors", named])
    assert "step-000006" in lmtool.succeeds("resume", "last", "-q").err


@pytest.mark.parametrize("command", READERS)
def test_no_checkpoint_is_whole(lmtool, run, corpus, command):
    for path in (run / "checkpoints").iterdir():
        flip(path / "model.safetensors")
    words = ["no checkpoint of this run is complete", "SHA-256", f"runs/{RUN}/checkpoints"]
    lmtool.refuses(CHECKPOINT, *reading(command, "last", corpus), words=words)


def test_a_resumed_run_is_the_same_after_falling_back(lmtool, run, trained):
    """Resuming from the checkpoint before gives the same model, bitwise."""
    flip(run / "checkpoints" / "step-000006" / "model.safetensors")
    lmtool.succeeds("resume", "last", "-q")
    again = (run / "checkpoints" / "step-000006" / "model.safetensors").read_bytes()
    assert again == (trained / "checkpoints" / "step-000006" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("command", READERS)
def test_a_tokenizer_that_does_not_fit(lmtool, run, corpus, command):
    lmtool.succeeds("tokenize", corpus, "--kind", "char", "-o", "chars")
    (run / "tokenizer.json").write_bytes((run.parents[1] / "chars" / "tokenizer.json").read_bytes())
    arguments = reading(command, "last", corpus)
    more = ["-s", "training.steps=+2"] if command == ["resume"] else []
    words = ["tokenizer does not fit the model", f"runs/{RUN}/tokenizer.json"]
    lmtool.refuses(CHECKPOINT, *arguments, *more, words=words)


def test_a_tokenizer_larger_than_the_model(lmtool, run, corpus):
    words = ["the tokenizer has 300 entries", "rows for 10", "model.vocab_size"]
    lmtool.refuses(CHECKPOINT, "pretrain", corpus, *SMALL, "-s", "model.vocab_size=10", words=words)


def test_no_tokenizer(lmtool, run, home, corpus):
    (home / "odd.json").write_text('{"model": [1, 2]}')
    lmtool.refuses(CHECKPOINT, "tokenize", corpus, "--tokenizer", "none", words=["there is no tokenizer", "none"])
    words = ["not a tokenizer", "odd.json", "lmtool tokenize"]
    lmtool.refuses(CHECKPOINT, "tokenize", corpus, "--tokenizer", "odd.json", words=words)


def test_another_recipe_or_text_than_the_runs(lmtool, run, corpus, home):
    before = contents(run)
    words = ["optimizer.lr 0.02 -> 0.5", f"runs/{RUN}/recipe.yaml", "lmtool pretrain"]
    lmtool.refuses(USAGE, "resume", "last", "-s", "optimizer.lr=0.5", words=words)
    recipe = run / "recipe.yaml"
    (home / "tales.txt").write_text("Another text than it was.\n" * 100)
    recipe.write_text(recipe.read_text().replace(str(corpus), "tales.txt"))
    changed = contents(run)
    words = ["its training data have changed", "tales.txt", "restore the old data"]
    lmtool.refuses(CHECKPOINT, "resume", "last", "-s", "training.steps=+2", words=words)
    assert contents(run) == changed
    assert {path: content for path, content in before.items() if path != "recipe.yaml"}.items() <= changed.items()


# Devices


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_not_there(lmtool, run, corpus):
    words = ["cuda is not available", "torch", "cpu", "auto"]
    lmtool.refuses(ENVIRONMENT, "pretrain", corpus, *SMALL, "-s", "training.device=cuda", words=words)
    lmtool.refuses(ENVIRONMENT, "resume", "last", "-s", "training.device=cuda", words=words)
    lmtool.refuses(ENVIRONMENT, "generate", "The", "--device", "cuda", words=words)
    lmtool.refuses(ENVIRONMENT, "eval", "last", corpus, "--device", "cuda", words=words)


# The command line itself


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pretrian", "x.txt"], ["No such command 'pretrian'", "lmtool --help"]),
        (["runs", "list"], ["No such command 'list'", "lmtool runs --help"]),
        (
            ["generate", "--temprature", "1"],
            ["No such option: --temprature", "--temperature", "lmtool generate --help"],
        ),
        (["generate", "--seed", "x"], ["--seed", "whole number"]),
        (["generate", "-n", "0"], ["-n"]),
        (["eval", "last"], ["nothing to evaluate", "--text"]),
        (["eval"], ["Missing argument 'RUN'", "lmtool eval --help"]),
        (["eval", "last", "x.txt", "--device", "tpu"], ["--device", "'tpu'", "'cuda'"]),
        (["pretrain"], ["no text to train on", "lmtool pretrain TEXT"]),
        (["pretrain", "x.txt", "-s"], ["-s"]),
        (["pretrain", "x.txt", "-s", "steps"], ["KEY=VALUE"]),
        (["tokenize"], ["no text to tokenize"]),
        (["\x1b[31m[bold]"], ["\\x1b[31m[bold]"]),
    ],
)
def test_a_wrong_command_line(lmtool, home, arguments, words):
    lmtool.refuses(USAGE, *arguments, words=words)


@pytest.mark.parametrize("arguments", [[], ["runs"], ["recipes"]])
def test_a_command_without_a_subcommand_shows_its_help(lmtool, arguments):
    outcome = lmtool(*arguments)
    assert outcome.code == USAGE
    assert "Commands" in outcome.out
    assert outcome.err == ""


def test_a_stride_beyond_the_context(lmtool, run, corpus):
    lmtool.refuses(USAGE, "eval", "last", corpus, "--stride", 17, words=["stride of 17", "16"])
    lmtool.succeeds("eval", "last", corpus, "--context", 17)  # its positions are unbounded


def test_a_prompt_longer_than_the_context(lmtool, run):
    lines = lmtool.refuses(USAGE, "generate", "zq" * 20, "-q", words=["tokens", "context is 16", "--overflow cut"])
    assert int(re.search(r"has (\d+) tokens", lines[0])[1]) > 16
    lmtool.succeeds("generate", "zq" * 20, "-q", "--overflow", "cut")


# Untrusted text

NASTY = "[red]\x1b[31m\x07\u202e\n:smile:"


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (DATA, ["pretrain", NASTY]),
        (DATA, ["pretrain", "rows.csv", "--column", NASTY]),
        (DATA, ["pretrain", "rows.jsonl"]),
        (DATA, ["pretrain", f"{NASTY}.txt"]),
        (USAGE, ["pretrain", "tales.txt", "--recipe", NASTY]),
        (USAGE, ["pretrain", "tales.txt", "--recipe", "bad.yaml"]),
        (USAGE, ["pretrain", "tales.txt", "-s", f"{NASTY}=1"]),
        (USAGE, ["pretrain", "tales.txt", "-s", f"optimizer.lr={NASTY}"]),
        (CHECKPOINT, ["generate", "--run", NASTY]),
        (CHECKPOINT, ["tokenize", "tales.txt", "--tokenizer", NASTY]),
        (ENVIRONMENT, ["pretrain", "tales.txt", "-o", f"/proc/{NASTY}"]),
    ],
)
def test_messages_escape_what_they_quote(lmtool, home, code, arguments):
    (home / "tales.txt").write_text("text")
    (home / "rows.csv").write_text(f'"a{NASTY}"\n1\n')
    (home / "rows.jsonl").write_text(f"{NASTY}\n")
    (home / "bad.yaml").write_text(json.dumps({NASTY: 1}))
    (home / f"{NASTY}.txt").write_bytes(b"\0")
    lines = lmtool.refuses(code, *arguments)
    assert ":smile:" in "".join(lines) or "[red]" in "".join(lines)


# Unexpected errors


def test_what_was_not_foreseen_is_one_line_without_a_traceback(lmtool, home, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("the \x1b[31msky\nfell")

    monkeypatch.setattr("lmtool.recipe.load.shipped_recipes", fail)
    outcome = lmtool("recipes", "ls")
    assert outcome.code == 1
    assert (
        outcome.err == "unexpected RuntimeError: the \\x1b[31msky\\nfell\n  run it again with --debug for a traceback\n"
    )
    debugged = lmtool("recipes", "ls", "--debug")
    assert debugged.code == 1
    assert debugged.err.startswith("Traceback (most recent call last):\n")
    assert debugged.err.endswith(f"\n{outcome.err}")


def test_a_traceback_stands_before_the_error_and_changes_no_exit_code(lmtool, home):
    words = ("generate", "x", "--run", "missing")
    refused, debugged = lmtool(*words), lmtool("--debug", *words)
    assert debugged.code == refused.code == 4
    assert debugged.err.startswith("Traceback (most recent call last):\n")
    assert debugged.err.endswith(f"\n{refused.err}")
    assert "Traceback" not in lmtool("--debug", "generate", "--no-such-option").err


def test_memory_and_disk_are_the_environment():
    assert to_lmtool_error(MemoryError()).exit_code == ENVIRONMENT
    assert (
        to_lmtool_error(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")).exit_code
        == ENVIRONMENT
    )
    assert to_lmtool_error(ImportError("libtorch_cpu.so: failed to map segment")).exit_code == ENVIRONMENT
    full = to_lmtool_error(OSError(28, "No space left on device", "some/file"))
    assert (full.exit_code, full.where) == (ENVIRONMENT, "some/file")


# What surrounds the process


@pytest.mark.parametrize("encoding", ["punycode", "idna", "undefined", "unicode_escape", "raw_unicode_escape", "rot13"])
def test_encodings_that_no_file_has(lmtool, home, encoding):
    (home / "table.csv").write_text("text,label\n" + "a b,c\nd e,f\n" * 20)
    lmtool.refuses(USAGE, "finetune", "table.csv", "--encoding", encoding, words=[f"no encoding '{encoding}'"])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"WORLD_SIZE": "x"}, ["'x'", "WORLD_SIZE", "torchrun"]),
        ({"WORLD_SIZE": "0"}, ["'0'", "WORLD_SIZE"]),
        ({"WORLD_SIZE": "2"}, ["RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT not set"]),
        ({"WORLD_SIZE": "9" * 5000}, ["WORLD_SIZE"]),
        ({"LOCAL_RANK": "-1"}, ["'-1'", "LOCAL_RANK"]),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            ["RANK is 2"],
        ),
    ],
)
def test_an_environment_that_torchrun_did_not_make(lmtool, home, corpus, monkeypatch, settings, words):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    lmtool.refuses(USAGE, "pretrain", corpus, *SMALL, words=words)


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "The"),
        ("runs", "ls"),
        ("tokenize", "--show", "The"),
        ("export", "last", "exported"),
        ("eval", "last", "-"),
    ],
)
def test_commands_that_several_processes_would_repeat(lmtool, run, monkeypatch, command):
    """Each would write the same files, or read a part of standard input."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"The map\n")))
    what = "standard input" if "-" in command else f"lmtool {command[0]}"
    lmtool.refuses(USAGE, *command, words=[what, "one process", "torchrun"])
    monkeypatch.delenv("WORLD_SIZE")  # a rank alone is what a shell may have left
    assert lmtool("runs", "ls").code == 0


def test_processes_that_cannot_meet(lmtool, home, corpus, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for given, words in ((port, [port, "free port"]), ("abc", ["abc"]), ("99999999", ["65535"])):
            names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
            for name, value in zip(names, ("2", "0", "0", "127.0.0.1", given), strict=True):
                monkeypatch.setenv(name, value)
            lmtool.refuses(5, "pretrain", corpus, *SMALL, words=words)


@pytest.mark.parametrize(
    ("penalty", "what"),
    [("1e300", "too large"), ("-1e300", "too large"), ("nan", "not a finite number"), ("101", "between -100 and 100")],
)
def test_a_length_penalty_that_overflows(lmtool, run, penalty, what):
    words = [what, "length"]
    lmtool.refuses(USAGE, "generate", "a", "--num-beams", "2", f"--length-penalty={penalty}", words=words)


def test_standard_input_that_is_closed(lmtool, run, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    lmtool.refuses(DATA, "eval", "last", "-", words=["empty"])
    sys.stdin.close()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(lmtool, run, corpus, value):
    with Run.open(run) as opened:
        opened.lock()
        newest, _ = opened.newest_checkpoint()
        weights = newest.load_model()
        name = next(iter(weights))
        weights[name].view(-1)[3] = value
        opened.save_checkpoint(Snapshot(8, weights, newest.load_optimizer(), newest.load_state(), 8), keep_last=3)
    words, named = [f"not finite: {name}", "step-000008"], f"{run}@8"
    for command in (
        ["eval", named, corpus, "--json"],
        ["generate", "a", "--run", named],
        ["attention", named, "a moon"],
    ):
        lmtool.refuses(NOT_FINITE, *command, words=words)
    lmtool.succeeds("eval", f"{run}@4", corpus)


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("training.batch_size=1000000000000000000000", "too large"),
        ("training.batch_size=1000000000", "above 0 and at most"),
        ("optimizer.lr=1e308", "too large"),
    ],
)
def test_numbers_that_no_training_has(lmtool, home, corpus, setting, what):
    words = [setting.split("=")[0], what]
    lmtool.refuses(USAGE, "pretrain", corpus, *SMALL, "-s", setting, words=words)


def test_a_file_in_place_of_a_command(lmtool, home, corpus):
    lmtool.refuses(USAGE, corpus, words=["no command", f"lmtool pretrain {corpus}"])
    lmtool.refuses(USAGE, "pretrian", corpus, words=["pretrain"])


def test_a_published_model_is_not_asked_for_to_be_resumed(lmtool, home, monkeypatch):
    monkeypatch.setattr("lmtool.interop.importing.download_model", lambda *_: pytest.fail("it is downloaded"))
    lmtool.refuses(4, "resume", "hf:some/model", words=["no training to resume", "hf:some/model", "--from"])
