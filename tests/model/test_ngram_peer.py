"""The n-gram model gives the probabilities that KenLM gives (Heafield et al. 2013), where KenLM is installed.

`pip install kenlm` has the reader; the estimator `lmplz` is built from the same sources and looked for on the PATH.
"""

import math
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import NGramModel
from tests.support.ngrams import counted, some_documents

VOCAB, EOS, BOS = 60, 0, 1
"""[BOS] is never predicted; its unigram probability corresponds to KenLM's <unk>."""


def name(token: int) -> str:
    return {EOS: "</s>", BOS: "<unk>"}.get(token, f"w{token}")


def texts() -> tuple[list[list[int]], int]:
    """Documents between [BOS] and [EOS] in which every word occurs, and the size of their vocabulary."""
    documents = [[*document, EOS] for document in some_documents(500, vocab_size=VOCAB)]
    used = sorted({token for document in documents for token in document} - {EOS, BOS})
    number = {token: i for i, token in enumerate(used, 2)} | {EOS: EOS, BOS: BOS}
    return [[number[token] for token in document] for document in documents], len(used) + 2


def ours(model: NGramModel, document: list[int]) -> float:
    """log10 p of all tokens but the first."""
    row = torch.tensor([document])
    return float(model.token_log_probs(model(Batch(row)).hidden_BTD[:, :-1], row[:, 1:]).sum()) / math.log(10)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_probabilities_equal_kenlm(order: int, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    lmplz = shutil.which("lmplz")
    if lmplz is None:
        pytest.skip("lmplz is not on the PATH")
    documents, size = texts()
    text = "".join(" ".join(map(name, document[1:-1])) + "\n" for document in documents)
    arpa = tmp_path / "model.arpa"
    arguments = [lmplz, "-o", str(order), "--discount_fallback", "-S", "64M", "-T", str(tmp_path / "spill")]
    estimated = subprocess.run(arguments, input=text.encode(), capture_output=True, check=True)
    arpa.write_bytes(estimated.stdout)
    theirs, model = kenlm.Model(str(arpa)), counted(documents, order, size)
    for document in [*documents[:40], [BOS, 9, 9, 2, 30, 30, 2, EOS], [BOS, EOS]]:
        score = theirs.score(" ".join(map(name, document[1:-1])), bos=True, eos=True)
        assert ours(model, document) == pytest.approx(score, abs=2e-4)  # it keeps 6 digits
