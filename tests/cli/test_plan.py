"""`lmtool plan`."""

import json

import pytest

from lmtool.cost import planning
from tests.cli.conftest import SMALL

ELSEWHERE = ("--device-kind", "a100", "--json")
FLAT = ("-s", "model.n_layers=1")
"""Memory is traced layer by layer."""


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Measures a step or two, not a second of them."""
    monkeypatch.setattr(planning, "ESTIMATE_SECONDS", 0.01)


@pytest.fixture
def table(home):
    path = home / "reviews.csv"
    lines = [f"{word} play number {i},{label}" for i in range(30) for word, label in (("good", "yes"), ("poor", "no"))]
    path.write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    return path


def planned(lmtool, *arguments):
    return json.loads(lmtool.succeeds("plan", *arguments, *ELSEWHERE).out)


def test_a_plan_is_printed(lmtool, home):
    outcome = lmtool.succeeds("plan", "gpt2-124m", "--device-kind", "h100", "--devices", "8", "-q")
    words = ["124,439,808 parameters", "a token", "gradients 498 MB", "8 x h100, bfloat16, 80 GB: fits", "rule"]
    assert all(word in outcome.out for word in words)


def test_a_text_decides_on_the_length(lmtool, home, corpus):
    found = planned(lmtool, "tiny", "--text", corpus, "-s", "training.epochs=3", *FLAT)
    assert 3 <= found["epochs"] < 3.5
    assert found["notes"] == []
    assert found["footprint"]["peak"] > found["footprint"]["weights"]


def test_a_text_is_planned_as_pretrain_trains_it(lmtool, home, corpus):
    """With the same arguments: the default recipe, or a recipe by name, beside the text or with --recipe."""
    assert planned(lmtool, corpus, *SMALL) == planned(lmtool, "default", "--text", corpus, *SMALL)
    by_option = planned(lmtool, corpus, "-r", "tiny", *SMALL, "--epochs", "3")
    assert by_option == planned(lmtool, "tiny", corpus, *SMALL, "-s", "training.epochs=3")
    assert by_option == planned(lmtool, corpus, "tiny", *SMALL, "--epochs", "3")
    run = lmtool.succeeds("pretrain", corpus, *SMALL, "--epochs", "3", "-q").out.strip()
    steps = len((home / run / "metrics.jsonl").read_text().splitlines())
    assert planned(lmtool, corpus, *SMALL, "--epochs", "3")["steps"] == steps
    on_from = planned(lmtool, corpus, "--from", run)
    assert (on_from["steps"], on_from["vocab_size"]) == (steps, 300)


def test_a_recipe_of_ones_own_is_planned(lmtool, home, corpus):
    (home / "mine.yaml").write_text(lmtool.succeeds("recipes", "show", "tiny").out)
    assert planned(lmtool, "mine.yaml", corpus, *FLAT) == planned(lmtool, "tiny", corpus, *FLAT)


def test_several_texts_are_one(lmtool, home, corpus):
    (home / "more.txt").write_text("A sailor found the map in the kettle. " * 300)
    one, two = (planned(lmtool, *texts, "-r", "tiny", *FLAT) for texts in ([corpus], [corpus, "more.txt"]))
    assert two["epochs"] < one["epochs"]


@pytest.mark.parametrize("named", [(), ("-r", "linear"), ("linear",)])
def test_a_table_is_planned_as_finetune_trains_it(lmtool, home, table, named):
    """In rows: 60, of which a tenth is held out."""
    outcome = lmtool.succeeds("plan", table, *named, "--epochs", "3", "-s", "training.min_steps=1", "-q")
    assert "length: 2 steps, 256 rows, 4.7 passes over the table" in outcome.out
    assert "time: " in outcome.out
    assert "measured" in outcome.out
    assert " 0 parameters" not in outcome.out
    assert not any(word in outcome.out for word in ("compute-optimal", "passes over the text", "tokens"))


def test_a_head_that_is_fitted_reads_the_table_once(lmtool, home, table):
    assert (
        "length: 1 step, 60 rows, 1.0 passes over the table" in lmtool.succeeds("plan", table, "-r", "linear", "-q").out
    )


def test_a_run_is_planned_on_a_table(lmtool, run, table):
    found = json.loads(lmtool.succeeds("plan", table, "--from", "last", "--epochs", "2", "--json", "-q").out)
    assert found["vocab_size"] == 300
    assert found["basis"] == "measured"
    assert found["tokens"] is None
    assert found["epochs"] == pytest.approx(2, abs=0.7)


def test_each_note_has_a_line_of_its_own(lmtool, run, home):
    """Which run is fine-tuned, and what of it is trained."""
    lines = [f"a {word} play number {i},{word}" for i in range(150) for word in ("good", "poor")]
    (home / "many.csv").write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    out = lmtool.succeeds("plan", "many.csv", "-q").out
    assert "\\n" not in out
    assert len([line for line in out.splitlines() if line.startswith("note: ")]) == 2


def test_a_student_is_planned_with_the_tokenizer_of_its_teacher(lmtool, run, corpus):
    teacher = ("-s", "distillation.teacher=last")
    found = json.loads(lmtool.succeeds("plan", corpus, "--recipe", "tiny", *teacher, *FLAT, "--json", "-q").out)
    assert found["vocab_size"] == 300
    lmtool.refuses(2, "plan", corpus, *teacher, "-s", "tokenizer.kind=word", words=["tokenizer.kind=word", "teacher"])


@pytest.mark.parametrize("name", ["linear", "softmax", "naive-bayes", "dan", "tagger"])
def test_recipes_for_tables_are_planned_in_rows(lmtool, home, name):
    outcome = lmtool.succeeds("plan", name, "--device-kind", "h100", "-q")
    (length,) = (line for line in outcome.out.splitlines() if line.startswith("length: "))
    assert length.endswith(" rows")
    assert "compute-optimal" not in outcome.out
    assert "table" in outcome.out


def test_what_cannot_be_planned(lmtool, home, corpus):
    lmtool.refuses(2, "plan", "tiny", "--device-kind", "abacus", words=["abacus", "h100"])
    lmtool.refuses(2, "plan", "tiny", "--device-kind", "h100", "--utilization", "2", words=["share"])
    lmtool.refuses(2, "plan", "ngram", words=["counts"])
    lmtool.refuses(3, "plan", "tiny", "--text", "nowhere.txt", words=["nowhere.txt"])
    lmtool.refuses(2, "plan", words=["lmtool plan book.txt"])
    lmtool.refuses(2, "plan", "tiny", "lstm", words=["tiny", "lstm", "one"])
    lmtool.refuses(2, "plan", "tiny", "-r", "lstm", words=["tiny", "lstm", "one"])


def test_a_run_alone_is_not_planned(lmtool, run):
    for name in ("last", run.name):
        lmtool.refuses(2, "plan", name, words=[f"lmtool plan TEXT --from {name}"])


def test_minutes_are_for_a_text(lmtool, home, corpus):
    assert planned(lmtool, corpus, "--minutes", "1", *FLAT)["steps"] > 1


def test_a_misspelt_name_is_that_of_a_text_or_a_recipe(lmtool, home, corpus):
    (home / "book.txt").write_bytes(corpus.read_bytes())
    lmtool.refuses(3, "plan", "bok.txt", words=["does not exist", "did you mean book.txt?"])
    lmtool.refuses(3, "plan", "bok", words=["did you mean book.txt?"])
    lmtool.refuses(3, "plan", "tiny", "bok.txt", words=["did you mean book.txt?"])
    lmtool.refuses(2, "plan", "tinny", words=["no recipe", "did you mean tiny"])
    lmtool.refuses(2, "plan", "my.yaml", words=["no recipe"])


def test_a_table_is_planned_as_finetune_reads_it(lmtool, home, table):
    """By the options that an error about it names."""
    odd = home / "mail.csv"
    odd.write_text(table.read_text(encoding="utf-8").replace("text,label", "Größe,Urteil"), encoding="cp1252")
    columns = ["--text-column", "Größe", "--label-column", "Urteil"]
    lmtool.refuses(3, "plan", odd, *columns, words=["--encoding"])
    read = planned(lmtool, odd, "--encoding", "cp1252", *columns)
    assert read["examples"] == planned(lmtool, table)["examples"]
