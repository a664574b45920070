"""Tokenizers of published models: the ids of Transformers in every form, and refusals of damaged files."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer

from lmtool.interop.published_tokenizers import read_tokenizer
from tests.interop.hub_tokenizers import FORMS, texts

N_TEXTS = 2000


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for i, (name, form) in enumerate(FORMS.items()):
        made[name] = root / str(i)
        form.write(made[name])
    return made


def transformers_tokenizer(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
        return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "marian"])
def test_ids_are_those_of_transformers(folders: dict[str, Path], name: str) -> None:
    form = FORMS[name]
    ours = Tokenizer.from_str(read_tokenizer(folders[name], form.model_type).json)
    theirs = transformers_tokenizer(folders[name])
    battery = texts(N_TEXTS, 1, form.specials)
    pairs = list(zip(battery[:500], battery[1:501], strict=True))
    for split in (False, True):
        ours.encode_special_tokens = split
        for batch in (battery, pairs):
            found = [encoding.ids for encoding in ours.encode_batch(batch)]
            wanted = theirs(batch, split_special_tokens=split)["input_ids"]
            wrong = [(text, a, b) for text, a, b in zip(batch, found, wanted, strict=True) if a != b]
            assert not wrong, f"{len(wrong)} differ, e.g. {wrong[:3]!a}"
