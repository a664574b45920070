"""The notebooks run from their beginning; and what they use exists, which is seen without running them."""

import ast
import builtins
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lmtool

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
books = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
MODELS = {"load", "pretrain", "finetune"}
"""Functions that return a model."""


def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def mistakes(source: str) -> Iterator[str]:
    """Names that nothing binds before they are read, imports of what does not exist, and calls that do not fit."""
    known, models = set(dir(builtins)), set[str]()
    for node in ast.parse(source).body:
        for part in ast.walk(node):
            if isinstance(part, ast.ImportFrom) and part.module:
                module = importlib.import_module(part.module)
                yield from (f"{part.module}.{alias.name}" for alias in part.names if not hasattr(module, alias.name))
            if isinstance(part, ast.Import | ast.ImportFrom):
                known |= {(alias.asname or alias.name).partition(".")[0] for alias in part.names}
            match part:
                case ast.Name(name, ast.Store()) | ast.FunctionDef(name) | ast.ClassDef(name) | ast.arg(name):
                    known.add(name)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and called(node.value) in MODELS:
            models |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id not in known:
                yield part.id
            if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id in models:
                yield from [] if hasattr(lmtool.load.__globals__["TrainedModel"], part.attr) else [part.attr]
            if isinstance(part, ast.Call) and called(part) in MODELS:
                names = {str(keyword.arg) for keyword in part.keywords}
                yield from names - inspect.signature(getattr(lmtool, str(called(part)))).parameters.keys()


def called(call: ast.Call) -> str | None:
    return call.func.id if isinstance(call.func, ast.Name) else None


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"attention", "counts-to-neural", "decoding", "pretraining"}


@books
def test_what_it_uses_exists(path: Path) -> None:
    assert list(mistakes("\n".join("".join(cell["source"]) for cell in cells(path)))) == []


@pytest.mark.parametrize(
    ("source", "mistake"),
    [
        ("print(missing)", "missing"),
        ("from lmtool import load, Missing", "lmtool.Missing"),
        ("from lmtool import load\nlm = load('last')\nlm.sing()", "sing"),
        ("from lmtool import pretrain\npretrain('a', recepie='tiny')", "recepie"),
    ],
)
def test_mistakes_are_found(source: str, mistake: str) -> None:
    assert mistake in list(mistakes(source))


@books
def test_it_was_run_in_order_without_errors(path: Path) -> None:
    assert [cell["execution_count"] for cell in cells(path)] == list(range(1, len(cells(path)) + 1))
    outputs = [output for cell in cells(path) for output in cell["outputs"]]
    assert any("image/svg+xml" in output.get("data", {}) for output in outputs)
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result"}
    assert str(ROOT) not in path.read_text(encoding="utf-8")


@books
def test_it_is_opened_in_colab_where_its_first_cell_installs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address has the file's name; without a repository on GitHub there is none."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "site"))
    page = importlib.import_module("hooks").notebook_page
    (address,) = re.findall(r"\[Open in Colab\]\((.*?)\)", page(path, "https://github.com/ada/tool"))
    prefix = "https://colab.research.google.com/github/ada/tool/blob/main/"
    assert ROOT / address.removeprefix(prefix) == path
    assert "Colab]" not in page(path, "") + page(path, "https://example.org/r")

    calls: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, **options: calls.append(command))
    first = "".join(cells(path)[0]["source"])
    exec(first, {})
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    exec(first, {})
    assert [command[1:] for command in calls] == [["-m", "pip", "install", "-q", lmtool.__name__]]


@pytest.mark.slow
@books
def test_it_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of cells are raised; what is printed depends on the processor."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    again = json.loads(importlib.import_module("pages").run_notebook(path))["cells"]
    kinds = [[output["output_type"] for output in cell["outputs"]] for cell in cells(path)]
    assert kinds == [[output["output_type"] for output in cell["outputs"]] for cell in again if "outputs" in cell]
