"""`lmtool eval --tasks`: figures and rows, what was trained on, two runs, and what is refused."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.cli import CommandLine

LABELS = [("good", "yes"), ("bad", "no"), ("good", "yes"), ("bad", "yes")]
"""The last one is not what the text says."""

DATA = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: rows.jsonl}}}}
test_split: test
"""
TASKS = {
    "words": """\
output_type: multiple_choice
doc_to_text: "{{ text }} verdict:"
doc_to_choice: ["yes", "no"]
doc_to_target: label
metric_list: [{metric: acc}]
""",
    "written": """\
output_type: generate_until
doc_to_text: "{{ text }} verdict:"
doc_to_target: label
generation_kwargs: {until: ["\\n"], max_gen_toks: 3}
metric_list: [{metric: exact_match}]
filter_list: [{name: word, filter: [{function: regex, regex_pattern: "(yes|no)"}, {function: take_first}]}]
""",
    "texts": """\
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{ text }} verdict: {{ label }}"
metric_list: [{metric: bits_per_byte}]
""",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    lines = [f"{word} verdict: {answer}" for word, answer in (("good", "yes"), ("bad", "no")) for _ in range(40)]
    (folder / "text.txt").write_text("\n\n".join(lines))
    lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in LABELS]
    (folder / "rows.jsonl").write_text("".join(lines))
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(DATA.format(name=name) + task)
    return folder


@pytest.fixture
def lm_eval(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


pytestmark = pytest.mark.filterwarnings("ignore")  # of lm-eval, and of what it imports


@pytest.mark.usefixtures("lm_eval")
def test_figures_rows_and_what_was_trained_on(lmtool: CommandLine, counted: Path, files: Path, home: Path) -> None:
    asked = ("eval", counted, "--tasks", files, "--rows", "rows.jsonl", "--json")
    found = lmtool.succeeds(*asked).json()
    tasks = found["tasks"]
    assert list(tasks) == ["texts", "words", "written"]
    assert tasks["words"]["metrics"]["acc"]["value"] == tasks["written"]["metrics"]["exact_match,word"]["value"] == 0.75
    assert (tasks["words"]["rows"], tasks["words"]["shots"], found["cut"]) == (4, 0, 0)
    low, high = tasks["texts"]["metrics"]["bits_per_byte"]["interval"]
    assert low <= tasks["texts"]["metrics"]["bits_per_byte"]["value"] <= high
    rows = list(map(json.loads, (home / "rows.jsonl").read_text().splitlines()))
    assert [(row["task"], row["doc_id"]) for row in rows] == [(task, n) for task in tasks for n in range(4)]
    assert [row["acc"] for row in rows if row["task"] == "words"] == [1, 1, 1, 0]
    lmtool.refuses(2, *asked, words=["exists already"])
    shown = lmtool.succeeds("eval", counted, "--tasks", f"{files}/words.yaml,{files}/texts.yaml", "--limit", "2")
    first, second = (line.split() for line in shown.out.splitlines()[1:])
    assert first[:3] == ["words", "acc", "1.0000"]
    assert second[:2] == ["texts", "bits_per_byte"]
    assert "of 4 rows" in lmtool.succeeds("eval", counted, "--tasks", files / "words.yaml").err


def test_without_lm_eval_it_is_told_how_to_install_it(
    lmtool: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    lmtool.refuses(5, "eval", "no-such-run", "--tasks", "bundled", words=["pip install 'lmtool[lmeval]'"])
    lmtool.refuses(5, "runs", "compare", "a", "b", "--tasks", "x", words=["pip install 'lmtool[lmeval]'"])


@pytest.mark.usefixtures("lm_eval")
def test_runs_are_compared_on_each_task(lmtool: CommandLine, counted: Path, files: Path, home: Path) -> None:
    keys = ("model.order=1", "model.context=16", "data.split=document")
    settings = [word for key in keys for word in ("-s", key)]
    lmtool.succeeds("pretrain", files / "text.txt", "-o", "other", "-q", "-r", "ngram", *settings)
    asked = ("runs", "compare", counted, "other", "--tasks", files, "--json")
    tests = {one["source"]: one for one in json.loads(lmtool.succeeds(*asked).out)["tests"]}
    assert list(tests) == ["texts", "words", "written"]
    assert (tests["words"]["rows"], tests["words"]["measure"]) == (4, "acc")
    assert tests["words"]["right_alone"][0] - tests["words"]["right_alone"][1] == -4 * tests["words"]["difference"]
    assert tests["texts"]["measure"] == "log-probability"
    assert tests["texts"]["means"][0] > tests["texts"]["means"][1], "the 4-gram knows the text"
