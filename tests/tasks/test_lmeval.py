"""Tasks of lm-eval: each request as a plain loop over the model's logits answers it, and as lm-eval's `hf` does."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("lm_eval")
from lmtool.compute.device import CPU
from lmtool.errors import Code, DataError
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingParams
from lmtool.interop.export.exporting import export
from lmtool.runs.load import LoadedModel, load_run
from lmtool.tasks import benchmarks
from lmtool.tasks.comparison import compare_row_scores, extract_row_scores_by_task
from tests.interop.runs import made, recipe_of, tokenizer_of
from tests.support.errors import refuses
from tests.support.exporting import CASES, CAUSAL, LLAMA
from tests.support.training import Work

pytestmark = pytest.mark.filterwarnings("ignore")  # of lm-eval, and of what it imports

ROWS: list[dict[str, Any]] = [
    {"text": f"a {who} {did} on the {place}", "word": did, "right": n % 3}
    for n, (who, did, place) in enumerate(
        (who, did, place) for who in ("cat", "dog") for did in ("sat", "ran") for place in ("mat", "home", "naïve mat")
    )
]
TASKS: dict[str, dict[str, Any]] = yaml.safe_load("""
choice: &choice
  output_type: multiple_choice
  doc_to_text: "{{ text }} and"
  doc_to_choice: [home, away, the mat and the dog]
  doc_to_target: right
  metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}, {metric: acc_mutual_info}]
shots: {<<: *choice, fewshot_split: test, num_fewshot: 2, metric_list: [{metric: acc}]}
schema:
  <<: *choice
  doc_to_text: "{{ right }}"
  doc_to_choice: "{{ ['a cat', 'a dog ran and', 'the dog'] }}"
  doc_to_target: word
  metric_list: [{metric: acc}]
word:
  output_type: loglikelihood
  doc_to_text: "{{ text.rpartition(' ')[0] }}"
  doc_to_target: " {{ text.rpartition(' ')[2] }}"
  metric_list: [{metric: acc}, {metric: perplexity}]
text:
  output_type: loglikelihood_rolling
  doc_to_text: ""
  doc_to_target: "{{ (text + ' and ') * 9 }}"
  metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
written:
  output_type: generate_until
  doc_to_text: "{{ text }}"
  doc_to_target: word
  generation_kwargs: {until: [" the"], max_gen_toks: 6, do_sample: false}
  metric_list: [{metric: exact_match}]
""")
CHOICE, WRITTEN = TASKS["choice"], TASKS["written"]


def write(folder: Path, **tasks: dict[str, Any]) -> str:
    """A folder of tasks on rows beside them."""
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}}, "test_split": "test"}
    for name, task in tasks.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"task": name, **data, **task}))
    return str(folder)


@pytest.fixture(scope="module", autouse=True)
def _library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    benchmarks.import_and_silence_lm_eval()
    import datasets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("tasks"), **TASKS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    work = Work(tmp_path_factory.mktemp("runs"))
    kinds = {
        "decoder": ("model.context=64",),
        "recurrent": ("model={kind: recurrent, d_model: 16, context: 16}",),
        "encoder": ("model.context=64", "model.shape=encoder", "objective={kind: masked}"),
    }
    for name, overrides in kinds.items():
        work.pretrain(*overrides, "training.steps=2", name=name)
    return {name: load_run(str(work.run(name)), CPU) for name in kinds}


def opened(folder: str, *names: str) -> benchmarks.Tasks:
    return benchmarks.load_lm_eval_tasks([str(Path(folder) / f"{name}.yaml") for name in names])


def test_the_mean_over_rows_is_measured(runs: dict[str, LoadedModel], folder: str) -> None:
    found = benchmarks.evaluate_lm_eval_tasks(runs["decoder"], opened(folder, "choice"))
    for name in ("acc", "acc_mutual_info"):
        metric, values = found.tasks["choice"][name], [row[name] for row in found.samples["choice"]]
        assert metric.values == values
        assert metric.value == pytest.approx(sum(values) / 12)
        low, high = metric.interval or (1, 0)
        assert 0 <= low <= metric.value <= high <= 1
    assert (found.rows, found.shots, found.n_truncated) == ({"choice": 12}, {"choice": 0}, 0)


def test_rows_and_examples_can_be_fewer(runs: dict[str, LoadedModel], folder: str) -> None:
    tasks = benchmarks.load_lm_eval_tasks([f"{folder}/shots.yaml"], n_shots=1)
    found = benchmarks.evaluate_lm_eval_tasks(runs["decoder"], tasks, max_rows_per_task=3)
    assert (found.rows, found.shots) == ({"shots": 3}, {"shots": 1})
    assert all(row["arguments"][0][0].count(" and") == 2 for row in found.samples["shots"])


def test_a_group_has_the_mean_of_its_tasks(runs: dict[str, LoadedModel], tmp_path: Path) -> None:
    """Also where its tasks stand beside it in a folder."""
    folder = write(tmp_path / "group", choice=CHOICE, word=TASKS["word"])
    group = {"group": "both", "task": ["choice", "word"], "aggregate_metric_list": [{"metric": "acc"}]}
    (tmp_path / "group" / "both.yaml").write_text(yaml.safe_dump(group))
    found = benchmarks.evaluate_lm_eval_tasks(runs["decoder"], benchmarks.load_lm_eval_tasks([folder]))
    values = [one["acc"].value for one in found.tasks.values()]
    assert len(values) == 2
    assert found.groups == {"both": {"acc": pytest.approx(sum(values) / 2)}}
    assert found.lines()[-1].split()[:2] == ["both", "acc"]


@pytest.mark.parametrize("samples", [False, True])
def test_generated_answers_end_where_the_task_says(runs: dict[str, LoadedModel], samples: bool, tmp_path: Path) -> None:
    """Filters of sampling are off at the values of Transformers."""
    off = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0} if samples else {}
    folder = write(tmp_path / "t", t=WRITTEN | {"generation_kwargs": WRITTEN["generation_kwargs"] | off})
    told: list[tuple[str, int, int]] = []
    tasks = benchmarks.load_lm_eval_tasks([folder])
    found = benchmarks.evaluate_lm_eval_tasks(runs["decoder"], tasks, report=lambda *step: told.append(step))
    assert told == [("generating", done, len(ROWS)) for done in range(1, len(ROWS) + 1)]
    params = SamplingParams("sample", temperature=1.0) if samples else SamplingParams("greedy")
    params = replace(params, max_new_tokens=6)
    wanted = TextGenerator(runs["decoder"]).complete([row["text"] for row in ROWS], params, stop=(" the",))
    assert [row["resps"] for row in found.samples["t"]] == [[[text]] for text in wanted]


def test_what_does_not_fit_the_context_is_counted(runs: dict[str, LoadedModel], tmp_path: Path) -> None:
    long = write(tmp_path / "long", choice=CHOICE | {"description": "a cat ran home and " * 20})
    found = benchmarks.evaluate_lm_eval_tasks(
        runs["decoder"], benchmarks.load_lm_eval_tasks([long]), max_rows_per_task=2
    )
    assert found.n_truncated == 6, "not the choices without their question"
    assert found.truncation_notices()


Pair = tuple[LoadedModel, Any]
"""A tiny model of the form of Llama, and lm-eval's model of it in Transformers."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """With a token before each text, and without."""
    pytest.importorskip("transformers")
    from lm_eval.models.huggingface import HFLM

    pairs = {}
    for name, recipe in {"begun": CASES["llama"][1], "stream": recipe_of(LLAMA, CAUSAL)}.items():
        folder = tmp_path_factory.mktemp(name)
        run = made(folder / "run", recipe, tokenizer_of())
        export(str(run), folder / "exported")
        # its cache mixes up windows of repeated texts that differ in what is scored
        arguments = {"dtype": "float32", "device": "cpu", "batch_size": 4, "logits_cache": False}
        peer = HFLM(pretrained=str(folder / "exported"), **arguments)
        pairs[name] = load_run(str(run), CPU), peer
    return pairs


# lm-eval puts a second one of the token before each text before a whole text
@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("begun", "stream") for n in TASKS if k + n != "beguntext"])
def test_rows_are_those_of_the_model_in_transformers(
    kind: str, name: str, exported: dict[str, Pair], folder: str
) -> None:
    """The same results in each row by the adapter and by lm-eval's `hf` on the exported model."""
    from lm_eval.evaluator import evaluate

    loaded, peer = exported[kind]
    own = benchmarks.evaluate_lm_eval_tasks(loaded, opened(folder, name)).samples[name]
    tasks = opened(folder, name)
    tasks["tasks"][name].set_fewshot_seed(benchmarks.FEWSHOT_SEED)
    other = evaluate(peer, dict(tasks), bootstrap_iters=0)["samples"][name]
    assert len(own) == len(other) == len(ROWS)
    for row, one in zip(own, sorted(other, key=lambda row: row["doc_id"]), strict=True):
        for (mine,), (theirs,) in zip(row["resps"], one["resps"], strict=True):
            if isinstance(mine, tuple):
                assert mine == (pytest.approx(theirs[0], abs=1e-4), theirs[1])
            else:
                assert mine == (theirs if isinstance(mine, str) else pytest.approx(theirs, abs=1e-3))
        if name != "text":
            assert [row[metric] for metric in row["metrics"]] == pytest.approx(
                [one[m] for m in row["metrics"]], abs=1e-4
            )


def test_shipped_tasks_are_opened_wherever_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert benchmarks.bundled_task_names() == ["bigbench", "bundled"]
    tasks = benchmarks.load_lm_eval_tasks(["bundled"])
    texts = dict(benchmarks.iterate_row_names_and_answered_prompts(tasks, max_rows_per_task=3))
    assert list(tasks["tasks"]) == ["endings", "entailment", "kinship", "names", "reviews", "texts"]
    assert len(texts) == 18
    assert texts["entailment, row 1"].split()[-1] in ("True", "Neither", "False")
    with pytest.raises(DataError, match="bigbench_cs_algorithms") as refused:
        benchmarks.load_lm_eval_tasks(["bigbench"])
    assert "lmtool data get bigbench" in refused.value.fix


REFUSED: dict[str, tuple[Code, dict[str, Any]]] = {
    "unread": ("usage", {"doc_to_text": "{{ text"}),
    "none": ("usage", {"doc_to_text": "{{ nil }}"}),
    "lost": ("data", {"dataset_kwargs": {"data_files": {"test": "no.jsonl"}}}),
    "later": ("usage", {"doc_to_choice": "{{ [text] * (4 - text.count('naïve') * 9 / right) }}"}),
    "wrong": ("data", {"doc_to_target": "word"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_task_that_cannot_be_used_is_refused(name: str, tmp_path: Path) -> None:
    code, changes = REFUSED[name]
    folder = write(tmp_path / "t", t=CHOICE | changes)
    with refuses(code):
        list(benchmarks.iterate_row_names_and_answered_prompts(benchmarks.load_lm_eval_tasks([folder])))


def test_what_is_no_task_is_refused(tmp_path: Path, runs: dict[str, LoadedModel]) -> None:
    write(tmp_path, one=CHOICE, same=CHOICE | {"task": "one"})
    (tmp_path / "list.yaml").write_text("[1]")
    (tmp_path / "empty").mkdir()
    for names in (["one.yaml", "same.yaml"], ["list.yaml"], ["empty"], ["missing.yaml"]):
        with refuses("usage"):
            benchmarks.load_lm_eval_tasks([str(tmp_path / name) for name in names])
    with refuses("usage"):
        benchmarks.load_lm_eval_tasks(["", str(tmp_path / "one.yaml")])
    with refuses("usage"):
        benchmarks.load_lm_eval_tasks([write(tmp_path / "written", written=WRITTEN)], [runs["encoder"]])


def test_useless_weights_are_told(runs: dict[str, LoadedModel], folder: str) -> None:
    import torch

    loaded = runs["recurrent"]
    before = {name: value.clone() for name, value in loaded.model.state_dict().items()}
    try:
        with torch.no_grad():
            next(loaded.model.parameters()).fill_(float("nan"))
        with refuses("numerical"):
            benchmarks.evaluate_lm_eval_tasks(loaded, opened(folder, "word"), max_rows_per_task=1)
    finally:
        loaded.model.load_state_dict(before)


def test_two_models_are_compared_row_by_row(runs: dict[str, LoadedModel], folder: str) -> None:
    tasks = opened(folder, "choice", "shots", "text", "written")
    found = {name: benchmarks.evaluate_lm_eval_tasks(runs[name], tasks) for name in ("decoder", "recurrent")}
    prompts = [[row["arguments"] for row in one.samples["shots"]] for one in found.values()]
    assert prompts[0] == prompts[1], "with the same examples"
    scored = [extract_row_scores_by_task(name, one) for name, one in found.items()]
    one, text = (compare_row_scores(name, scored[0][name], scored[1][name]) for name in ("choice", "text"))
    assert (one.measure, one.rows, one.right_alone is not None) == ("acc", 12, True)
    assert (text.measure, text.right_alone) == ("log-probability", None)
    assert scored[0]["written"].metric == "exact_match"
