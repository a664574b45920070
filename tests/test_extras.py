"""What the base install leaves out is asked for with the line to type, before anything is read."""

import sys
import tomllib
from pathlib import Path

import pytest

from lmtool.errors import ResourceError
from lmtool.extras import library
from tests.cli.conftest import home, lmtool  # noqa: F401 - fixtures

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def base(monkeypatch):
    """No library of the extra `data`."""
    for name in [*sys.modules]:
        if name.split(".")[0] in ("pyarrow", "datasets", "pandas"):
            monkeypatch.delitem(sys.modules, name)
    for name in ("pyarrow", "pyarrow.parquet", "datasets", "pandas"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a.parquet", "Parquet files are read by pyarrow"),
        ("a.csv.zst", "Zstandard files are read by pyarrow"),
        ("hf:org/name", "datasets of the Hub are read by datasets"),
    ],
)
@pytest.mark.parametrize("command", ["pretrain", "finetune"])
def test_a_file_that_needs_an_extra_says_which(base, lmtool, home, command, name, what):  # noqa: F811 - fixtures
    if not name.startswith("hf:"):
        (home / name).write_bytes(b"(\xb5/\xfd")
    recipe = ["-r", "tiny" if command == "pretrain" else "dan"]
    lines = lmtool.refuses(5, command, name, *recipe, words=[f"{what}, which is not installed"])
    assert lines[-1] == "  pip install 'lmtool[data]'"


def test_a_library_that_is_there_is_imported():
    assert library("json.decoder", "texts are read by", "data").JSONDecoder
    with pytest.raises(ResourceError) as caught:
        library("no_such.library", "texts are read by", "data", ", or read them yourself")
    assert caught.value.lines() == [
        "texts are read by no_such, which is not installed",
        "  pip install 'lmtool[data]', or read them yourself",
    ]


def test_extras_are_no_part_of_the_base():
    names = {name.split(">")[0] for name in PROJECT["dependencies"]}
    for extra in ("data", "serve", "tensorboard", "wandb", "mlflow", "faiss", "convert"):
        wanted = {name.split(">")[0] for name in PROJECT["optional-dependencies"][extra]}
        assert wanted
        assert not wanted & names
