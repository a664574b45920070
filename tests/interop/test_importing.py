"""Published models become runs: the same ids, the same logits, the same texts; and what is damaged is refused."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import BertModel, PreTrainedTokenizerFast

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.errors import CheckpointError, ResourceError, UsageError
from lmtool.evaluation.embedding import embed
from lmtool.generation.generate import TextGenerator
from lmtool.interop.export.exporting import export
from lmtool.interop.importing import import_model_as_new_run, import_to_cache
from lmtool.interop.references import is_published
from lmtool.interop.resolve import import_if_published, resolve_reference
from lmtool.runs.directory import Run
from lmtool.runs.load import load_run
from lmtool.tokenization.encoder import is_gpt2_bpe
from lmtool.tokenization.tokenizer import Tokenizer as OurTokenizer
from tests.faults.places import make_read_only
from tests.runs.killing import in_child
from tests.support.peers import CASES, CORPUS, TEXTS, brought, peer_in, rows_of
from tests.support.published import sentence_transformers

CANNOT_MOUNT = 77


@pytest.mark.parametrize("case", ["gpt2", "t5"])
def test_a_model_in_several_files_and_in_half_precision_is_the_same(case: str, tmp_path: Path) -> None:
    peer = peer_in(tmp_path / "model", case, max_shard_size="30KB", dtype=torch.bfloat16)
    assert len(list((tmp_path / "model").glob("model-*.safetensors"))) > 1
    loaded = brought(tmp_path / "model")
    model, tokens_BT = loaded.model, torch.arange(20)[None] + 5
    source_BS = tokens_BT if loaded.prompt_format.answers else None
    more = {} if source_BS is None else {"decoder_input_ids": tokens_BT}
    with torch.no_grad():
        wanted = peer(tokens_BT, **more).logits
        found = model.logits(model(Batch(tokens_BT, source_BS=source_BS)).hidden_BTD)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def test_a_model_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is found again by its content, also in another place; other content is another run."""
    peer_in(tmp_path / "model", "gpt2")
    first = import_to_cache(str(tmp_path / "model"))
    (tmp_path / "model").rename(tmp_path / "moved")

    def never(*args: Any) -> None:
        raise AssertionError("imported again")

    with monkeypatch.context() as patched:
        patched.setattr("lmtool.interop.importing._write_run", never)
        with pytest.raises(AssertionError):
            import_to_cache(str(peer_in(tmp_path / "other", "llama") and tmp_path / "other"))
        (tmp_path / "moved").rename(tmp_path / "model")
        assert import_to_cache(str(tmp_path / "model")) == first
    weights = load_file(tmp_path / "model" / "model.safetensors")
    save_file({name: tensor + 1 for name, tensor in weights.items()}, tmp_path / "model" / "model.safetensors")
    assert import_to_cache(str(tmp_path / "model")) != first


@pytest.mark.parametrize("forgets", [(), ("digests",), ("digests", "hub")])
def test_a_model_that_was_imported_is_used_from_a_read_only_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: Sequence[str]
) -> None:
    """Also where the checksums of its files, and the name of the Hub, were not noted."""
    peer_in(tmp_path / "model", "gpt2")
    monkeypatch.setattr("lmtool.interop.importing.download_hub_model", lambda reference: (tmp_path / "model", "c0ffee"))
    runs = [import_to_cache(str(tmp_path / "model")), Path(import_if_published("hf:some/model"))]
    for name in forgets:
        shutil.rmtree(tmp_path / "cache" / "imports" / name)

    peer_in(tmp_path / "other", "llama")

    def work() -> None:
        if not make_read_only(tmp_path / "cache"):
            os._exit(CANNOT_MOUNT)
        assert [import_to_cache(str(tmp_path / "model")), Path(import_if_published("hf:some/model"))] == runs
        rows_of(load_run(resolve_reference(str(tmp_path / "model")), CPU))
        with pytest.raises(ResourceError):
            import_to_cache(str(tmp_path / "other"))

    code = os.waitstatus_to_exitcode(os.waitpid(in_child(work), 0)[1])
    if code == CANNOT_MOUNT:
        pytest.skip("this user cannot mount a folder")
    assert code == 0


def test_a_run_of_its_own_says_where_it_came_from(tmp_path: Path) -> None:
    peer_in(tmp_path / "model", "t5")
    run = Run.open(import_model_as_new_run(str(tmp_path / "model"), tmp_path / "mine", lambda *_: None))
    assert run.state == "imported"
    assert run.info.origin is not None
    assert run.info.origin.model_type == "t5"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= run.info.origin.sha256.keys()
    assert load_run("last").run_path == run.path


@pytest.mark.parametrize(("mode", "normed"), [("cls_token", False), ("mean_tokens", True), ("max_tokens", False)])
def test_whole_texts_are_embedded_as_by_sentence_transformers(mode: str, normed: bool, tmp_path: Path) -> None:
    folder = sentence_transformers(tmp_path / "model", mode, *(["Normalize"] if normed else []), max_length=64)
    model = BertModel.from_pretrained(folder).eval()
    loaded = brought(folder)
    assert loaded.recipe.model.context == 64
    found = np.concatenate([one.vectors for one in embed(loaded, TEXTS, -1, "own")])
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    for text, vector_D in zip(TEXTS, found, strict=True):
        ids = torch.tensor([theirs(text, split_special_tokens=True)["input_ids"]])
        with torch.no_grad():
            hidden_TD = model(ids).last_hidden_state[0]
        wanted_D = {"cls_token": hidden_TD[0], "mean_tokens": hidden_TD.mean(0), "max_tokens": hidden_TD.amax(0)}[mode]
        wanted_D = wanted_D / wanted_D.norm() if normed else wanted_D
        np.testing.assert_allclose(vector_D, wanted_D.numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="does not predict tokens"):
        TextGenerator(loaded).completions("It [MASK].", mask="[MASK]")
    export(str(loaded.run_path), tmp_path / "exported")
    again = brought(tmp_path / "exported")
    assert again.recipe.objective == loaded.recipe.objective
    assert again.recipe.model.context == 64
    np.testing.assert_array_equal(np.concatenate([one.vectors for one in embed(again, TEXTS, -1, "own")]), found)


@pytest.mark.parametrize("length", [True, "64"])
def test_a_length_that_is_no_integer_is_refused(length: object, tmp_path: Path) -> None:
    """True would be a context of one token."""
    sentence_transformers(tmp_path / "model", max_length=length)
    with pytest.raises(CheckpointError, match=f"max_seq_length is {length!r}, not of type int"):
        import_to_cache(str(tmp_path / "model"))


def change(folder: Path, file: str, **values: Any) -> None:
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**content, **values}))


def test_a_truth_value_is_no_end_token(tmp_path: Path) -> None:
    """False would be the token 0."""
    peer_in(tmp_path / "model", "llama")
    change(tmp_path / "model", "generation_config.json", eos_token_id=[2, False])
    ends = brought(tmp_path / "model").tokenizer.roles.ends
    assert 2 in ends
    assert 0 not in ends


def rewrite(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Change the weights; None removes one."""
    file = folder / "model.safetensors"
    weights = {**load_file(file), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, file, {"format": "pt"})


def cut(file: Path, share: float) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])


def lost_shard(folder: Path) -> None:
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": "../../secret\x1b[31m.safetensors"}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def link_to_itself(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def norm(tensor: torch.Tensor | None) -> Callable[[Path], None]:
    """Puts another tensor in the place of the gains of the last norm."""
    return lambda folder: rewrite(folder, transformer__ln_f__weight=tensor)


def config(**values: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder, "config.json", **values)


def content(name: str, text: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(text)


TENSORS = "model.safetensors"
DAMAGED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a truncated file": (lambda f: cut(f / TENSORS, 0.7), "cannot be read"),
    "an empty file": (lambda f: cut(f / TENSORS, 0), "cannot be read"),
    "a header beyond the file": (content(TENSORS, struct.pack("<Q", 2**62) + b"{}"), "cannot be read"),
    "a shard that nobody has": (lost_shard, "which is not there"),
    "a pickle": (lambda f: (f / TENSORS).rename(f / "pytorch_model.bin"), "is a pickle"),
    "a tensor of another shape": (norm(torch.ones(31)), "is 31, not 32"),
    "a tensor of another rank": (norm(torch.ones(2, 2, 2)), "not 32"),
    "a missing tensor": (norm(None), "ln_f.weight is missing"),
    "a tensor too many": (lambda f: rewrite(f, transformer__extra__weight=torch.ones(3)), "has no place"),
    "another copy of a tied tensor": (lambda f: rewrite(f, lm_head__weight=torch.ones(333, 32)), "lm_head"),
    "NaN": (norm(torch.full((32,), torch.nan)), "not finite numbers"),
    "integers": (norm(torch.ones(32, dtype=torch.int8)), "quantization"),
    "more layers than there are": (config(n_layer=10**9), "layer"),
    "one layer too many": (config(n_layer=3), "missing"),
    "heads that do not divide": (config(n_head=7), "divide"),
    "a width beyond all memories": (config(n_embd=2 * 10**15), "larger than what any"),
    "a negative size": (config(n_embd=-1), "not a positive number"),
    "a larger embedding": (config(vocab_size=10**7), "not 10000000 x 32"),
    "a smaller embedding": (config(vocab_size=10), "entries"),
    "an unknown family": (config(model_type="\x1b[31mmamba"), "cannot be imported"),
    "an unknown key": (config(logit_cap=30.0), "logit_cap"),
    "no JSON": (content("config.json", b"{"), "not a JSON object"),
    "a list": (content("config.json", b"[1]"), "not a JSON object"),
    "deep JSON": (content("config.json", b"[" * 100_000), "not a JSON object"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ""),
    "a link to itself": (lambda f: link_to_itself(f / "tokenizer.json"), ""),
    "a damaged tokenizer": (lambda f: cut(f / "tokenizer.json", 0.5), ""),
}


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "model"
    peer_in(folder, "gpt2")
    return folder


@pytest.mark.parametrize("how", DAMAGED)
def test_damaged_models_are_refused_in_three_lines_and_leave_nothing(how: str, gpt2: Path, tmp_path: Path) -> None:
    damage, what = DAMAGED[how]
    damage(shutil.copytree(gpt2, tmp_path / "model"))
    with pytest.raises(CheckpointError) as caught:
        import_to_cache(str(tmp_path / "model"))
    lines = caught.value.lines()
    assert what in lines[0]
    assert len(lines) == 3
    assert all(line.isprintable() for line in lines[:1])
    folder = tmp_path / "cache" / "imports"
    assert not [path for path in folder.glob("*") if path.name not in ("digests", "locks")]


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    assert not is_published(str(tmp_path))
    assert import_if_published(str(tmp_path)) == str(tmp_path)
    assert not is_published(str(tmp_path / "missing.gguf"))
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        import_to_cache(str(tmp_path))


@pytest.mark.parametrize(
    "reference", ["hf:", "hf:../../etc", "hf:a/b/c", "hf:a b/c", "hf:/x", "hf:x@", "hf:\x1b[31m/x"]
)
def test_wrong_names_of_the_hub(reference: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        import_if_published(reference)
    assert "does not name a model" in caught.value.what


def test_a_name_of_the_hub_is_not_asked_for_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer_in(tmp_path / "model", "gpt2")
    asked = []

    def download(reference: str) -> tuple[Path, str]:
        asked.append(reference)
        return tmp_path / "model", "c0ffee"

    monkeypatch.setattr("lmtool.interop.importing.download_hub_model", download)
    first = import_to_cache("hf:some/model")
    assert import_if_published("hf:some/model") == str(first)
    assert asked == ["hf:some/model"]
    origin = Run.open(first).info.origin
    assert origin is not None
    assert (origin.reference, origin.revision) == ("hf:some/model", "c0ffee")
    assert import_to_cache("hf:some/model@v2") == first
    assert len(asked) == 2
    import_model_as_new_run("hf:some/model", tmp_path / "own", lambda *_: None)
    assert import_if_published("hf:some/model") == str(first)
    assert len(asked) == 4


@pytest.mark.parametrize("case", ["gpt2", "llama", "bert", "roberta", "t5"])
def test_batches_of_texts_have_the_same_ids_as_single_ones(case: str) -> None:
    """Where tiktoken is proven equal, as for GPT-2, and elsewhere."""
    _, _, inner, roles = CASES[case]
    tokenizer = OurTokenizer(Tokenizer.from_str(inner.to_str()), roles)
    texts = [*TEXTS, "", "  two  spaces \n\n", "don't 123 'tis", "the the " * 50, *CORPUS[:5]]
    ids, lengths = tokenizer.encode_many(texts)
    assert [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])] == [tokenizer.encode(t) for t in texts]


def test_tiktoken_is_used_where_ids_are_in_the_order_of_merges() -> None:
    plain = json.loads(CASES["gpt2"][2].to_str())
    assert is_gpt2_bpe(plain)
    for key, value in (("add_prefix_space", True), ("use_regex", False)):
        assert not is_gpt2_bpe({**plain, "pre_tokenizer": {**plain["pre_tokenizer"], key: value}})
    vocabulary = dict(plain["model"]["vocab"])
    first, second = ("".join(merge) for merge in plain["model"]["merges"][:2])
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    assert not is_gpt2_bpe({**plain, "model": {**plain["model"], "vocab": vocabulary}})
    assert not is_gpt2_bpe({**plain, "normalizer": {"type": "NFC"}})
    assert not is_gpt2_bpe({**plain, "added_tokens": [*plain["added_tokens"], {"special": False}]})
