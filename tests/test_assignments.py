"""The assignments: stubs get no point, right solutions all of them, and common mistakes lose theirs."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
STUBS = ROOT / "docs" / "assignments"
SOLUTIONS = ROOT / "tests" / "solutions"
NAMES = sorted(path.stem for path in STUBS.glob("*.py"))
MISTAKES = [
    ("bpe", "counts[pair] += n", "counts[pair] += 1", "most_frequent_pair"),
    ("bpe", "(-counts[pair], pair)", "-counts[pair]", "most_frequent_pair"),
    ("bpe", "found and isinstance", "len(found) == 1 and isinstance", "merged"),
    ("attention", " / np.sqrt(q_TK.shape[1])", "", "attend"),
    ("attention", "scores_TS.max(axis=1, keepdims=True)", "0", "softmax"),
    ("attention", "-np.inf), 1)", "-np.inf), 0)", "causal_mask"),
    ("attention", "axis=1) @ w_o", "axis=1)", "multi_head"),
    ("lstm", "enter, forget, candidate", "forget, enter, candidate", "step"),
    ("lstm", "[-20.0, 20.0,", "[-20.0, 2.0,", "remembering_bias"),
    ("beam", "total / n, ids", "total, ids", "beam_search"),
    ("beam", "if not is_end][:k]", "if not is_end]", "beam_search"),
    ("nucleus", "< mass) + 1", "<= mass)", "nucleus"),
    ("nucleus", "max(scores)) / t", "max(scores)) * t", "probabilities"),
    ("masking", "fate < 0.9", "fate < 1.0", "corrupt"),
    ("masking", " and token not in special", "", "corrupt"),
    ("masking", "max(1, len(found))", "max(1, len(targets))", "loss"),
]


@pytest.fixture
def grade(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("grade")


def test_each_assignment_has_a_stub_a_solution_and_a_place_on_the_page(grade: ModuleType) -> None:
    assert sorted(grade.ASSIGNMENTS) == NAMES == sorted(path.stem for path in SOLUTIONS.glob("[a-z]*.py"))
    page = (ROOT / "docs" / "teaching.md").read_text(encoding="utf-8")
    for name, exercises in grade.ASSIGNMENTS.items():
        row = re.search(rf"^\| \[`{name}.py`\].* \| (.*) \|$", page, flags=re.MULTILINE)
        assert row is not None
        assert row[1].split(", ") == [*exercises]


def test_stubs_get_no_point(grade: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert grade.main(str(STUBS)) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1] == f"0 of {len(printed) - 1} points"
    assert all(line.endswith("is not written yet") for line in printed[:-1])


def test_right_solutions_get_all_points(grade: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert grade.main(str(SOLUTIONS)) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "right", "wrong", "function"), MISTAKES, ids=lambda part: part if len(part) < 20 else ""
)
def test_mistakes_are_found(
    grade: ModuleType, tmp_path: Path, name: str, right: str, wrong: str, function: str
) -> None:
    source = (SOLUTIONS / f"{name}.py").read_text(encoding="utf-8")
    assert source.count(right) == 1
    path = tmp_path / f"{name}.py"
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    found = grade.grade(path)
    assert found[function] is not None
    assert " gives " in found[function] or " raises " in found[function]


def test_a_file_that_cannot_be_imported_is_wrong(grade: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "lstm.py").write_text("def step(:\n", encoding="utf-8")
    assert all("SyntaxError" in wrong for wrong in grade.grade(tmp_path / "lstm.py").values())
    with pytest.raises(SystemExit, match=r"no beam.py there"):
        grade.main(str(tmp_path), "beam")


@pytest.mark.system
def test_make_grade(tmp_path: Path) -> None:
    shutil.copy(SOLUTIONS / "nucleus.py", tmp_path)
    tools = [f"BIN={Path(sys.executable).parent}", "-o", ".venv/.runtime"]  # what runs the tests is installed
    command = ["make", "-s", "grade", f"FOLDER={tmp_path}", "ONLY=nucleus", *tools]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("4 of 4 points\n")
