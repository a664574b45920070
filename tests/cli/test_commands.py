"""Output of commands: JSON keys, stdout, stderr and files."""

import csv
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lmtool.data import bundled
from lmtool.run.directory import Run
from tests import forks
from tests.cli.conftest import RUN, SENTENCES, SMALL, contents

ROOT = Path(__file__).parents[2]
DOCUMENTS = ["\n".join(SENTENCES[start : start + 4]) for start in range(0, len(SENTENCES), 4)]


def documented(where):
    """The keys documented in docs/cli.md."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{where}` |"))
    return re.findall(r"`(\w+)`", row.removeprefix(f"| `{where}`"))


def write_csv(path):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["id", "Story text"], *enumerate(DOCUMENTS)])


def test_names_do_not_vanish():
    """The documented keys are stable."""
    names = " ".join(documented("metrics.jsonl"))
    assert names == "step loss valid_loss lr grad_norm tokens tokens_per_second seconds"
    names = " ".join(documented("eval --json"))
    assert names == "loss perplexity word_perplexity bits_per_byte tokens context stride limit_bits_per_byte"
    assert {"prompt", "text", "tokens", "logprobs", "seed"} <= set(documented("generate --json"))


def test_pretrain_prints_the_run_and_nothing_else(lmtool, home, corpus):
    outcome = lmtool.succeeds("pretrain", corpus, *SMALL)
    run = Path(outcome.out.rstrip("\n"))
    assert run.parent == Path("runs")
    assert (run / "run.json").is_file()
    assert outcome.err.startswith(f"run {run}\ntext: one text, ")
    assert "finished at step 6 after " in outcome.err
    for line in (run / "metrics.jsonl").read_text().splitlines():
        assert list(json.loads(line)) == documented("metrics.jsonl")


def test_quiet_is_quiet(lmtool, home):
    corpus = home / "tales.txt"
    # once each: a text that repeats itself is warned of
    corpus.write_text("\n".join(SENTENCES), encoding="utf-8")
    for text in ("data/stories.valid.txt", corpus):
        outcome = lmtool.succeeds("pretrain", text, *SMALL, "--quiet")
        assert outcome.err == ""
    outcome = lmtool.succeeds("resume", "-q", "-s", "training.steps=+2")
    assert outcome.err == ""
    outcome = lmtool.succeeds("eval", "last", corpus, "-q")
    assert outcome.err == ""
    outcome = lmtool.succeeds("generate", "The", "-q", "--max-new-tokens", "5")
    assert outcome.err == ""
    outcome = lmtool.succeeds("tokenize", corpus, "-q")
    assert outcome.err == ""


def test_resume_trains_on_and_says_when_there_is_nothing_left(lmtool, run):
    outcome = lmtool.succeeds("resume", "last", "-s", "training.steps=+2")
    assert outcome.out == f"runs/{RUN}\n"
    assert "changed: training.steps 6 -> 8" in outcome.err
    assert "warning" not in outcome.err
    outcome = lmtool.succeeds("resume", "last")
    assert outcome.out == f"runs/{RUN}\n"
    assert outcome.err.splitlines()[0] == f"finished: runs/{RUN} has completed all 8 steps"


def test_resume_without_a_name_takes_the_last_run_that_was_stopped(lmtool, run):
    """And says so; with more steps the last one, which may be finished."""
    finished = Path(shutil.copytree(run, run.with_name("finished")))

    def session(path, step, outcome=None):
        with Run.open(path) as began:
            began.lock()
            began.start_session(step=step, command=[], environment={})
            if outcome:
                began.end_session(outcome)

    session(run, 4)
    session(finished, 6, "finished")
    outcome = lmtool.succeeds("resume")
    assert outcome.err.splitlines()[0] == f"resuming {RUN}, since finished is finished"
    assert "finished at step 6" in outcome.err
    assert outcome.out == f"runs/{RUN}\n"
    outcome = lmtool.succeeds("resume")
    assert outcome.out == f"runs/{RUN}\n"
    assert "has completed all 6 steps" in outcome.err
    session(finished, 6, "finished")
    assert lmtool.succeeds("resume", "-s", "training.steps=+2").out == "runs/finished\n"


def test_a_text_is_looked_at_before_it_is_trained_on(lmtool, home):
    """What follows from it is told, with the key that chooses otherwise, and the result beside that of counting."""
    names = home / "names.txt"
    names.write_text("\n".join(f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"))
    outcome = lmtool.succeeds("pretrain", names, "--tokens", "3000", "-s", "training.device=cpu")
    told = outcome.err.splitlines()
    assert any(line.startswith("tokens: characters") and "(-s tokenizer.kind)" in line for line in told)
    assert any(line.startswith("documents: 360 lines") for line in told)
    assert any(line.startswith("length: 2 steps, for 3,000 tokens") for line in told)
    assert any(line.startswith("validation: ") and "a 5-gram model: " in line for line in told)
    (path,) = outcome.out.split()
    assert json.loads((home / path / "metrics.json").read_text())["ngram_bits_per_byte"] > 0
    assert "text: 324 documents" in outcome.err


def test_lines_that_are_documents_cannot_be_one_stream(lmtool, home, corpus):
    lmtool.refuses(
        2, "pretrain", corpus, "-r", "shakespeare-char", "-s", "data.documents=line", words=["data.split=document"]
    )


def test_more_steps_of_a_run_without_its_optimizer_state(lmtool, run):
    for path in (run / "checkpoints").glob("*/optimizer.safetensors"):
        path.unlink()
    outcome = lmtool.succeeds("resume", "last")
    assert "warning" not in outcome.err, "there is nothing left to train"
    outcome = lmtool.succeeds("resume", "last", "-s", "training.steps=+2")
    assert outcome.err.count("warning: the optimizer state was removed when the run finished, and starts anew") == 1
    assert "plan: steps 7 to 8" in outcome.err


def test_eval_for_programs_and_people(lmtool, run, corpus):
    outcome = lmtool.succeeds("eval", "last", corpus, "--stride", "4", "--json")
    record = json.loads(outcome.out)
    assert list(record) == documented("eval --json")
    assert (record["context"], record["stride"]) == (16, 4)
    assert outcome.err.startswith(f"runs/{RUN}, step 6, cpu, float32\n")
    shown = lmtool.succeeds("eval", "last", corpus, "--stride", "4").out
    assert f"{record['loss']:.4f} nats per token" in shown
    assert f"tokens           {record['tokens']:,} in " in shown


def test_eval_of_text_without_words(lmtool, run, home):
    """Values that JSON does not have are written as null."""
    (home / "hanzi.txt").write_text("雨" * 3000, encoding="utf-8")
    record = json.loads(lmtool.succeeds("eval", "last", "hanzi.txt", "--json").out, parse_constant=pytest.fail)
    assert record["word_perplexity"] is None


def test_generate_for_programs(lmtool, run, home):
    (home / "prompts.txt").write_text("The baker\n\nThe señora [bold]\n", encoding="utf-8")
    arguments = [
        "generate",
        "--prompt-file",
        "prompts.txt",
        "-n",
        "2",
        "--seed",
        "3",
        "--max-new-tokens",
        "4",
        "--json",
    ]
    records = [json.loads(line) for line in lmtool.succeeds(*arguments).out.splitlines()]
    assert [record["prompt"] for record in records] == ["The baker"] * 2 + [""] * 2 + ["The señora [bold]"] * 2
    for record in records:
        assert list(record) == documented("generate --json")
        assert len(record["tokens"]) == len(record["logprobs"]) == 4
        assert record["seed"] == 3


def test_tokenize_for_programs_and_people(lmtool, home, corpus):
    arguments = ["tokenize", corpus, "--vocab-size", 320, "-o", "tokens"]
    record = json.loads(lmtool.succeeds(*arguments, "--json").out)
    assert list(record) == documented("tokenize --json")
    assert record["bytes"] == corpus.stat().st_size
    assert record["tokens"] == record["train_tokens"] + record["valid_tokens"]
    assert (record["vocab_size"], record["documents"], record["split"]) == (320, 1, "slice")
    made = contents(home / "tokens")
    assert "tokenizer.json" in made
    shown = lmtool.succeeds(*arguments).out
    assert "bpe, 320 entries" in shown
    assert "cached" in shown
    assert "tokens: tokenizer.json, train/, valid/" in shown
    assert contents(home / "tokens") == made


def test_tokenize_says_what_it_could_not_reach_and_where_it_keeps_tokens(lmtool, home, corpus):
    shown = lmtool.succeeds("tokenize", corpus, "--vocab-size", "5000").out
    assert "(5,000 requested; the text yields no more)" in shown
    assert os.environ["LMTOOL_CACHE"] in shown


def test_pieces_are_text(lmtool, run):
    text = "The [BOS] \x1b[31m雨<extra_id_0>"
    shown = lmtool.succeeds("tokenize", "--tokenizer", "last", "--show", text).out
    assert shown.isascii()
    assert all(line.isprintable() for line in shown.replace("\t", "").splitlines())
    assert "\\x1b" in shown
    record = json.loads(lmtool.succeeds("tokenize", "--tokenizer", RUN, "--show", text, "--json").out)
    assert list(record) == documented("tokenize --show --json")
    assert record["text"] == text
    assert len(record["pieces"]) == len(record["ids"])
    assert min(record["ids"]) > 6


def test_lists_for_programs(lmtool, run):
    (entry,) = json.loads(lmtool.succeeds("runs", "ls", "--json").out)
    assert list(entry) == documented("runs ls --json")
    assert entry["name"] == RUN
    assert json.loads(lmtool.succeeds("runs", "show", "last", "--json").out)["fingerprints"]
    recipes = [json.loads(line) for line in lmtool.succeeds("recipes", "ls", "--json").out.splitlines()]
    assert "tiny" in [recipe["name"] for recipe in recipes]
    assert list(recipes[0]) == documented("recipes ls --json")


def test_a_runs_command_can_be_typed_again(lmtool, home, corpus):
    (home / "my tales.txt").write_bytes(corpus.read_bytes())
    lmtool.succeeds("pretrain", "my tales.txt", *SMALL, "-q")
    shown = lmtool.succeeds("runs", "show", "last").out
    assert "started: lmtool pretrain 'my tales.txt' -s model.n_layers=1 " in shown


# Text of every kind

KINDS = ["long.txt", "blank lines.txt", "crlf.txt", "rows.csv", "rows.jsonl", "rows.jsonl.gz", "ünï [x]*.txt", "folder"]


def write(kind, home):
    """Create the text of a kind; returns its arguments and its number of documents."""
    path = home / kind
    rows = "".join(json.dumps({"text": text, "id": i}) + "\n" for i, text in enumerate(DOCUMENTS))
    match kind:
        case "long.txt":
            path.write_text("\n".join(SENTENCES), encoding="utf-8")
            return [kind], None
        case "blank lines.txt":
            path.write_text("\n\n".join(SENTENCES), encoding="utf-8")
            return [kind], len(SENTENCES)
        case "crlf.txt":
            path.write_bytes("\r\n\r\n".join(SENTENCES).encode())
            return [kind], len(SENTENCES)
        case "rows.csv":
            write_csv(path)
            return [kind, "--column", "Story text"], len(DOCUMENTS)
        case "rows.jsonl":
            path.write_text(rows, encoding="utf-8")
        case "rows.jsonl.gz":
            path.write_bytes(gzip.compress(rows.encode()))
        case "folder":
            (path / "deep").mkdir(parents=True)
            for i, text in enumerate(DOCUMENTS):
                (path / "deep" / f"{i}.txt").write_text(text, encoding="utf-8")
            (path / "notes.pdf").write_bytes(b"\0")
        case _:
            path.write_text("\n".join(SENTENCES), encoding="utf-8")
            return [kind], None
    return [kind], len(DOCUMENTS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_text(lmtool, home, kind):
    names, documents = write(kind, home)
    record = json.loads(lmtool.succeeds("tokenize", *names, "--vocab-size", 300, "--json").out)
    assert record["documents"] == (documents or 1)
    assert record["split"] == ("document" if documents else "slice")
    lmtool.succeeds("pretrain", *names, *SMALL, "-q", "-o", "out put/[ünï]")
    assert lmtool.succeeds("eval", "out put/[ünï]", *names).out.startswith("loss ")
    assert lmtool.succeeds("generate", "--run", "[ünï]", "The", "--max-new-tokens", "3").out.startswith("The")


# Closed and full streams


def start(*arguments, **options):
    command = [sys.executable, "-m", "lmtool", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **options.pop("env", {})}
    return subprocess.run(command, stderr=subprocess.PIPE, env=env, **options)


@pytest.mark.system
def test_a_reader_that_goes_away(run, corpus, home):
    """As in `lmtool recipes show gpt2-124m --resolved | head -1`, when head exits first: no error, of no command."""
    (home / "rows.csv").write_text(
        "text,label\n" + "\n".join(f"film {i},{'yes' if i % 2 else 'no'}" for i in range(40))
    )
    for words in (
        "recipes show gpt2-124m --resolved",
        "--help",
        "runs show last",
        "generate The --greedy -q",
        f"eval last {corpus} -q",
        "attention last The -q",
        "finetune rows.csv -r linear -q -o tuned",
        "predict tuned rows.csv -q",
    ):
        reading, writing = os.pipe()
        os.close(reading)
        with (
            open(writing, "wb") as broken,
            forks.begin(["-m", "lmtool", *words.split()], files=(None, broken, subprocess.PIPE)) as done,
        ):
            _, said = done.communicate()
        assert (done.returncode, said) == (0, ""), words
    assert Run.open(home / "tuned").state == "finished"
    assert (home / "tuned" / "report.html").exists()


@pytest.mark.system
def test_a_program_whose_reader_goes_away():
    """Started as a shell does, until its end, at which Python writes what it has left."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as broken:
        done = start("recipes", "show", "gpt2-124m", "--resolved", stdout=broken)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.system
def test_a_full_disk_behind_stdout():
    with open("/dev/full", "wb") as full:
        done = start("recipes", "show", "gpt2-124m", "--resolved", stdout=full)
    assert done.returncode == 5
    assert done.stderr.startswith(b"No space left on device")


@pytest.mark.system
@pytest.mark.parametrize("reader", ["full disk", "gone"])
def test_messages_that_stderr_cannot_take_change_no_exit_code(reader, tmp_path):
    """A full disk or a closed pipe behind stderr ends the messages, not the training."""
    (tmp_path / "tales.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    if reader == "gone":
        reading, place = os.pipe()
        os.close(reading)
    else:
        place = os.open("/dev/full", os.O_WRONLY)
    with open(place, "wb") as lost:
        for arguments, code in ((["runs", "show", "nothing"], 4), (["pretrain", "tales.txt", *SMALL, "-o", "run"], 0)):
            command = ["-m", "lmtool", *map(str, arguments)]
            env = {**os.environ, "LMTOOL_RUNS": "runs"}
            with forks.begin(command, cwd=tmp_path, env=env, files=(None, subprocess.PIPE, lost)) as done:
                out, _ = done.communicate()
            assert done.returncode == code
    assert out == "run\n"


INTERRUPTED = """
import itertools, signal, sys
from lmtool.cli.output import prepare_streams

prepare_streams()
signal.signal(signal.SIGALRM, signal.default_int_handler)
numbers = itertools.count()
for i in range(2000):
    try:
        signal.setitimer(signal.ITIMER_REAL, (i % 100 + 1) * 1e-6)
        while True:
            sys.stderr.write(f"{next(numbers)}\\n")
    except KeyboardInterrupt:
        pass
"""


@pytest.mark.system
def test_an_interrupted_message_is_not_repeated():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], stderr=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0
    numbers = [int(line) for line in done.stderr.splitlines()]
    assert len(numbers) > 1000
    assert numbers == sorted(set(numbers))


@pytest.mark.system
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_closed_stream(stream):
    number = {"stdout": 1, "stderr": 2}[stream]
    done = start("recipes", "ls", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(number))
    assert done.returncode == 0
    assert done.stderr == b""


@pytest.mark.system
def test_an_encoding_that_lacks_letters(home):
    (home / "runs" / "雨").mkdir(parents=True)
    (home / "runs" / "雨" / "run.json").write_text("{")
    done = start("runs", "ls", stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 0
    assert done.stdout.startswith(b"\\u96e8\t")


def test_the_limit_of_a_bundled_text_stands_beside_the_figure(lmtool, home):
    text = bundled.data_folder() / "stories.valid.txt"
    small = ("-s", "model.context=16", "-s", "tokenizer.vocab_size=400")
    run = lmtool.succeeds("pretrain", text, *SMALL, *small).out.strip()
    shown = lmtool.succeeds("eval", run, "data/stories.valid.txt").out
    assert f"the best possible model: {bundled.entropy_bound([text]):.4f}" in shown
    record = json.loads(lmtool.succeeds("eval", run, text, "--json").out)
    assert record["limit_bits_per_byte"] == bundled.entropy_bound([text]) < record["bits_per_byte"]
