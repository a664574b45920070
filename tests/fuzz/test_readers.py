"""Some mutations of valid files for every reader; `make fuzz` tries many more."""

import random
import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lmtool.errors import LmtoolError
from tests.fuzz.mutation import mutated
from tests.fuzz.readers import READERS
from tests.support.cases import nightly_but


@cache
def seeds(name: str) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return READERS[name].seeds(Path(folder))


@pytest.mark.parametrize(
    "name",
    nightly_but(
        READERS,
        "recipe",
        "tsv table",
        "conll",
        "txt corpus",
        "parquet corpus",
        "records of generate",
        "config.json",
        "tokenizer.json of smollm2",
        24,
        "program of a chat template",
        "validated.json",
        "state.json",
        "search index",
    ),
)
def test_valid_files_are_read(name: str, tmp_path: Path) -> None:
    for number, content in enumerate(seeds(name)):
        (tmp_path / str(number)).mkdir()
        READERS[name].read(tmp_path / str(number), content)


@pytest.mark.parametrize(
    "name",
    nightly_but(READERS, "recipe", "jsonl table", "txt corpus", "prompts", "gguf", 24, "run.json", "MANIFEST.json"),
)
@given(number=st.integers(0, 2**31))
@settings(max_examples=10, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_errors_of_lmtool_come_out(name: str, number: int, tmp_path: Path) -> None:
    content = mutated(seeds(name), random.Random(number))
    error = None
    try:
        READERS[name].read(tmp_path, content)
    except LmtoolError as raised:
        error = raised
    assert error is None or error.exit_code > 1
