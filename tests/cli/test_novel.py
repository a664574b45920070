"""`lmtool generate` with a model of a list of short lines, which writes lines that are not in the list."""

import json
import random

import pytest

from lmtool.inference.generator import DRAWS
from lmtool.run.directory import LINES

RECIPE = ("-r", "ngram", "-s", "tokenizer.kind=char", "-s", "model.order=3")


@pytest.fixture
def names(tmp_path):
    """A list of 300 of the 512 names of three syllables."""
    syllables = ["ba", "ce", "di", "fo", "gu", "ha", "je", "ki"]
    every = [a + b + c for a in syllables for b in syllables for c in syllables]
    listed = random.Random(1).sample(every, 300)
    (tmp_path / "names.txt").write_text("\n".join(listed) + "\n")
    return set(listed)


@pytest.fixture
def run(lmtool, names, tmp_path):
    lmtool.succeeds("pretrain", tmp_path / "names.txt", *RECIPE, "-o", tmp_path / "run")
    return tmp_path / "run"


def written(lmtool, run, *options):
    """The records of the texts, of whole lines."""
    outcome = lmtool.succeeds("generate", "--run", run, "--json", *options)
    return [json.loads(line) for line in outcome.out.splitlines()], outcome.err


def test_known_lines_are_drawn_again(lmtool, run, names):
    told = "texts that are in the training data are drawn again; --no-novel keeps them"
    novel, err = written(lmtool, run, "-n", 40, "--seed", 5)
    assert told in err
    assert not any(record["text"] in names for record in novel)
    assert [record["sample"] for record in novel] == list(range(40))
    drawn, err = written(lmtool, run, "-n", 400, "--seed", 5, "--no-novel")
    assert told not in err
    new = [record for record in drawn if record["finish_reason"] != "end" or record["text"] not in names]
    assert len(new) < len(drawn)
    # the first draws that are new, in their order
    assert [record["tokens"] for record in novel] == [record["tokens"] for record in new[:40]]
    assert [record["draw"] for record in novel] == [record["draw"] for record in new[:40]]


def test_prompts_have_their_own_draws(lmtool, run, names):
    together, _ = written(lmtool, run, "ba", "ce", "ba", "-n", 5, "--seed", 5)
    assert [record["prompt"] for record in together] == ["ba"] * 5 + ["ce"] * 5 + ["ba"] * 5
    assert not any(record["prompt"] + record["text"] in names for record in together)
    alone, _ = written(lmtool, run, "ce", "-n", 5, "--seed", 5)
    assert [record["text"] for record in alone] == [record["text"] for record in together[5:10]]
    assert len({(record["prompt"], record["draw"]) for record in together}) == 15


def test_what_has_no_other_end_is_given_and_told(lmtool, run, names):
    name = sorted(names)[0]
    # so cold that the most probable token always comes, which is the end of the line
    records, err = written(lmtool, run, name, "-n", 2, "--seed", 5, "--temperature", 0.01)
    assert [record["text"] for record in records] == ["", ""]
    assert "2 of the texts are in the training data: other draws gave no new ones" in err
    assert [record["draw"] for record in records] == [2 * (DRAWS - 1), 2 * (DRAWS - 1) + 1]


def test_a_replay_repeats_the_draw(lmtool, run, tmp_path):
    outcome = lmtool.succeeds("generate", "--run", run, "--json", "-n", 20, "--seed", 5)
    (tmp_path / "records.jsonl").write_text(outcome.out)
    assert lmtool.succeeds("generate", "--replay", tmp_path / "records.jsonl").out.count("same") == 20


def test_refusals(lmtool, run, tmp_path):
    lmtool.refuses(2, "generate", "--run", run, "--novel", "--greedy", words=["greedy does not sample", "omit --novel"])
    content = (run / LINES).read_bytes()
    (run / LINES).write_bytes(content[:-1])
    lmtool.refuses(4, "generate", "--run", run, words=["lines.bin is damaged", "delete it"])
    lmtool.succeeds("generate", "--run", run, "--no-novel")
    lmtool.succeeds("generate", "--run", run, "--greedy")
    (run / LINES).unlink()
    lmtool.refuses(2, "generate", "--run", run, "--novel", words=["does not keep the lines"])
    lmtool.succeeds("generate", "--run", run)


def test_texts_that_are_no_lists_keep_none(lmtool, tmp_path):
    (tmp_path / "text.txt").write_text(
        "\n\n".join(f"A long paragraph of many words, number {i}." * 4 for i in range(40))
    )
    lmtool.succeeds("pretrain", tmp_path / "text.txt", *RECIPE, "-o", tmp_path / "run")
    assert not (tmp_path / "run" / LINES).exists()
