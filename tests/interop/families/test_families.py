"""Each family and each of its heads, as Transformers and gguf have them: in, out, and back again."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gguf
import pytest
import torch
import transformers
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingParams
from lmtool.interop.export.exporting import export, export_gguf_and_modelfile
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.model.heads import Classifier, SpanReader, Tagger, TokenHeadModel
from lmtool.runs.load import LoadedModel
from tests.interop.families.cases import CASES, PLAIN, TOKENIZERS
from tests.support.cases import nightly_but
from tests.support.peers import TEXTS, brought, peer_in, rows_of

UNREAD = ("cls.predictions.bias", "lm_head.bias")
"""Of BERT and RoBERTa, whose untied output matrix has another bias."""
NOT_IN_GGUF = {
    "gpt2 untied, dot": "model.activation",
    "llama of one group, geglu": "model.activation",
    "llama, yarn": "model.position.scaling.fast_turns",
    "llama, yarn, plain attention": "model.position.scaling.fast_turns",
    "mistral": "model.pattern.kind",
    "qwen2 with windows": "model.pattern.kind",
    "qwen2, windows between": "model.pattern.kind",
    "qwen2, windows everywhere": "model.pattern.kind",
    "qwen2, odd heads": "model.head_width",
    "qwen3 with windows": "model.pattern.kind",
    "gemma untied": "model.tie_embeddings",
    "neox, yarn": "model.activation",
    "starcoder2 with windows": "model.pattern.kind",
    "stablelm, tied": "model.tie_embeddings",
}
"""Models of families that GGUF has, and a key that stands in the way."""
GGUF = {*GGUF_FAMILIES, "mistral"}
KEEP = torch.arange(16) < torch.tensor([[16], [9], [1]])


class Row(NamedTuple):
    """A model of a family, a head of the family's file, and what is asked of it."""

    case: str
    head: str
    config: Mapping[str, Any] = MappingProxyType({})

    @property
    def model_type(self) -> str:
        return CASES[self.case][0]


TASKS = {
    "class": {"num_labels": 3},
    "multi": {"id2label": {0: "no", 1: "yes"}, "problem_type": "multi_label_classification"},
    "number": {"num_labels": 1},
}
FIRST = {model_type: case for case, (model_type, _) in reversed(CASES.items())}
ROWS: dict[str, Row] = {}
for name, (of_type, _) in CASES.items():
    for kind, head in FAMILIES[of_type].heads.items():
        if head.objective in ("causal", "masked") and kind != "next-sentence":
            ROWS[name] = Row(name, kind)
        elif FIRST[of_type] != name or (kind == "embedding" and FAMILIES[of_type].shape == "decoder"):
            continue
        elif kind == "classification":
            ROWS |= {f"{of_type}: {task}": Row(name, kind, config) for task, config in TASKS.items()}
        else:
            ROWS[f"{of_type}: {kind}"] = Row(name, kind)


def peer_of(folder: Path, row: Row) -> Any:
    """A random model of Transformers, in a folder as on the Hub."""
    family = FAMILIES[row.model_type]
    config = {**CASES[row.case][1], **row.config}
    if row.model_type == "modernbert" and row.head == "classification":
        config |= {"classifier_pooling": "mean" if row.config == TASKS["number"] else "cls"}
    architecture = family.class_prefix + family.heads[row.head].class_suffix
    return peer_in(folder, (architecture, config, *TOKENIZERS.get(row.case, TOKENIZERS.get(row.model_type, PLAIN))))


def tokens_of(peer: Any, seed: int = 0) -> Tensor:
    """Tokens (3, 16) that are the padding token where `KEEP` is not, and nowhere else."""
    padding = peer.config.pad_token_id or 0
    tokens = torch.randint(100, (3, 16), generator=torch.Generator().manual_seed(seed))
    return torch.where(KEEP, tokens + (tokens >= padding), padding)


def segments_of(peer: Any) -> Tensor | None:
    """Second segments at the end of rows, if it has two."""
    has_two = getattr(peer.config, "type_vocab_size", 1) > 1
    return (torch.arange(16) >= torch.tensor([[7], [16], [12]])).long() if has_two else None


def theirs(peer: Any) -> Tensor:
    """Logits, scores or hidden states, where there is no padding."""
    tokens_BT, segments_BT = tokens_of(peer), segments_of(peer)
    more = {} if segments_BT is None else {"token_type_ids": segments_BT}
    if peer.config.is_encoder_decoder:
        more = {"decoder_input_ids": tokens_of(peer, 1)}
    with torch.no_grad():
        found = peer(tokens_BT, attention_mask=KEEP.long(), **more)
    if "start_logits" in found:
        return torch.stack((found.start_logits, found.end_logits), -1)[KEEP]
    if "seq_relationship_logits" in found:
        return torch.cat((found.prediction_logits[KEEP].flatten(), found.seq_relationship_logits.flatten()))
    if "logits" not in found:
        return found.last_hidden_state[KEEP]  # type: ignore[no-any-return]
    is_row = peer.config.is_encoder_decoder or "SequenceClassification" in type(peer).__name__
    return found.logits if is_row else found.logits[KEEP]  # type: ignore[no-any-return]


def ours(loaded: LoadedModel, peer: Any) -> Tensor:
    """The same of ours."""
    lm, batch = loaded.model, Batch(tokens_of(peer), keep_BT=KEEP, segments_BT=segments_of(peer))
    with torch.no_grad():
        if loaded.recipe.model.reads == "source":
            batch = Batch(tokens_of(peer, 1), source_BS=tokens_of(peer), source_keep_BS=KEEP)
            return lm.logits(lm(batch).hidden_BTD)
        if isinstance(lm, Classifier):
            return lm.run_head(batch).scores
        if isinstance(lm, Tagger | SpanReader):
            return TokenHeadModel.run_head(lm, batch).scores[KEEP]
        hidden_BTD = lm(batch).hidden_BTD
        if loaded.recipe.objective.kind == "embedding":
            return hidden_BTD[KEEP]
        logits = lm.logits(hidden_BTD)[KEEP]
        if getattr(loaded.recipe.model, "next_sentence_head", False):
            return torch.cat((logits.flatten(), lm.next_sentence_logits(hidden_BTD).flatten()))  # type: ignore[operator]
        return logits


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


@pytest.mark.parametrize(
    "name",
    nightly_but(
        ROWS,
        "gpt2: class",
        "llama, wide heads",
        "qwen2: number",
        "gemma: multi",
        "neox in sequence, tied",
        "starcoder2 with windows",
        "mpt: class",
        "bert: question-answering",
        "xlm-roberta: class",
        "distilbert: multi",
        "electra: tagging",
        130,
    ),
)
def test_in_and_out_and_back(name: str, tmp_path: Path) -> None:
    """The same ids and outputs; what is exported are the same tensors, and comes in as the same recipe."""
    row = ROWS[name]
    peer = peer_of(tmp_path / "in", row)
    loaded = brought(tmp_path / "in")
    assert loaded.recipe.objective.kind in (FAMILIES[row.model_type].heads[row.head].objective, "seq2seq")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "in")
    assert rows_of(loaded) == [tokenizer(text, split_special_tokens=True)["input_ids"] for text in TEXTS]
    close(ours(loaded, peer), theirs(peer))
    exported = export(str(loaded.run_path), tmp_path / "out")
    assert exported.family.model_type == row.model_type
    assert exported.architecture == type(peer).__name__
    again, found = type(peer).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    for tensor_name, tensor in again.state_dict().items():
        is_read = tensor_name not in UNREAD or peer.config.tie_word_embeddings
        assert (
            not is_read or tensor_name.startswith("pooler.") or torch.equal(tensor, peer.state_dict()[tensor_name])
        ), tensor_name
    if row.head in ("classification", "tagging") and row.config != TASKS["number"]:
        assert again.config.id2label == peer.config.id2label
    back = brought(tmp_path / "out").recipe
    assert back.model == loaded.recipe.model
    assert back.objective == loaded.recipe.objective
    if exported.is_generative:
        assert_same_text(loaded, peer)
        assert_same_gguf(row, loaded, peer, tmp_path)


def assert_same_text(loaded: LoadedModel, peer: Any) -> None:
    """24 tokens by greedy search, of two texts in one batch."""
    roles = loaded.tokenizer.roles
    never = sorted({*roles.specials, *range(loaded.tokenizer.vocab_size, peer.config.vocab_size)} - roles.ends)
    answers = loaded.prompt_format.answers
    settings = transformers.GenerationConfig(
        max_new_tokens=24,
        do_sample=False,
        suppress_tokens=never,
        pad_token_id=roles.pad,
        eos_token_id=sorted(roles.ends),
        decoder_start_token_id=peer.config.decoder_start_token_id if answers else None,
    )
    found = TextGenerator(loaded).completions(TEXTS[:2], SamplingParams("greedy", max_new_tokens=24))
    more = {"decoder_input_ids": torch.tensor([roles.starts])} if answers else {}
    for completion, row in zip(found, rows_of(loaded), strict=False):
        row_BT = torch.tensor([row])
        with torch.no_grad():
            wanted = peer.generate(row_BT, attention_mask=torch.ones_like(row_BT), generation_config=settings, **more)
        assert list(completion.tokens) == wanted[0, len(roles.starts) if answers else len(row) :].tolist()


def assert_same_gguf(row: Row, loaded: LoadedModel, peer: Any, folder: Path) -> None:
    """A GGUF file has llama.cpp's tensors, and comes in as the same recipe but for dropout; or a key is in the way."""
    if row.model_type not in GGUF or row.case in NOT_IN_GGUF:
        with pytest.raises(UsageError) as refusal:
            export_gguf_and_modelfile(str(loaded.run_path), folder / "model.gguf", "f16")
        assert NOT_IN_GGUF.get(row.case, "model") in str(refusal.value.where)
        return
    exported = export_gguf_and_modelfile(str(loaded.run_path), folder / "model.gguf", "f16")
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == exported.family.architecture)
    table = gguf.get_tensor_name_map(arch, loaded.recipe.model.n_layers)  # type: ignore[union-attr]
    names = [name for name in peer.state_dict() if name != "lm_head.weight" or not peer.config.tie_word_embeddings]
    written = {tensor.name for tensor in gguf.GGUFReader(folder / "model.gguf").tensors} - {"rope_freqs.weight"}
    assert written == {table.get_name(name, try_suffixes=(".weight", ".bias")) for name in names}
    back = brought(folder / "model.gguf")
    same = {"dropout": 0.0, "position": loaded.recipe.model.position}  # type: ignore[union-attr]
    kept = {"pattern": back.recipe.model.pattern}  # type: ignore[union-attr]
    assert back.recipe.model.with_unvalidated_values(same) == loaded.recipe.model.with_unvalidated_values(
        {**same, **kept}
    )
    close(ours(back, peer), theirs(peer), 0.02)
    assert [back.tokenizer.encode(text) for text in TEXTS] == [loaded.tokenizer.encode(text) for text in TEXTS]


def test_all_families_are_in_the_table() -> None:
    assert {row.model_type for row in ROWS.values()} == FAMILIES.keys()


def test_a_body_beside_a_head_that_no_recipe_has(tmp_path: Path) -> None:
    """The discriminator of ELECTRA."""
    peer = peer_in(tmp_path / "in", ("ElectraForPreTraining", CASES["electra"][1], *TOKENIZERS["electra"]))
    loaded = brought(tmp_path / "in")
    assert loaded.recipe.objective.kind == "embedding"
    close(ours(loaded, peer.electra), theirs(peer.electra))


def test_a_decoder_without_its_output_bias(tmp_path: Path) -> None:
    """As facebook/bart-base, whose logits have no bias."""
    peer = peer_in(tmp_path / "in", ("BartModel", CASES["bart"][1], *TOKENIZERS["bart"]))
    loaded = brought(tmp_path / "in")
    assert not loaded.recipe.model.head_bias  # type: ignore[union-attr]
    export(str(loaded.run_path), tmp_path / "out")
    again = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    assert all(torch.equal(tensor, peer.state_dict()[name]) for name, tensor in again.model.state_dict().items())
    close(ours(loaded, peer), theirs(again))
