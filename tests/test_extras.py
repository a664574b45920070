"""What the base install leaves out is asked for with the line to type, before anything is read."""

import re
import tomllib
from pathlib import Path

import pytest

from lmtool.errors import ResourceError
from lmtool.extras import import_extra

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_a_library_that_is_there_is_imported() -> None:
    assert import_extra("json.decoder", "texts are read by", "serve").JSONDecoder
    with pytest.raises(ResourceError) as caught:
        import_extra("no_such.library", "texts are read by", "serve", ", or read them yourself")
    assert caught.value.lines() == [
        "texts are read by no_such, which is not installed",
        "  pip install 'lmtool[serve]', or read them yourself",
    ]


def test_extras_are_no_part_of_the_base() -> None:
    names = {name.split(">")[0] for name in PROJECT["dependencies"]}
    for extra in ("serve", "tensorboard", "wandb", "mlflow", "faiss", "convert"):
        wanted = {name.split(">")[0] for name in PROJECT["optional-dependencies"][extra]}
        assert wanted
        assert not wanted & names


def test_the_base_reads_what_the_first_pages_name() -> None:
    """Data sets of the Hub and Parquet; and `make quickstart` installs what README.md runs: serve and label."""
    assert {"datasets", "pyarrow"} <= {name.split(">")[0] for name in PROJECT["dependencies"]}
    makefile = (Path(__file__).parents[1] / "Makefile").read_text(encoding="utf-8")
    (rule,) = re.findall(r"\$\(VENV\)/\.runtime:.*\n((?:\t.*\n)+)", makefile)
    assert "'.[serve]'" in rule
