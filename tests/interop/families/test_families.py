"""Each family and each of its heads, as Transformers and gguf have them: in, out, and back again."""

from pathlib import Path
from typing import Any, NamedTuple

import gguf
import pytest
import torch
import transformers

from lmtool.errors import UsageError
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingParams
from lmtool.interop.export.exporting import export, export_gguf_and_modelfile
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.load import LoadedModel
from tests.interop.families.peers import brought as read_without_files
from tests.interop.families.peers import described, language_model
from tests.support.cases import nightly_but
from tests.support.exporting import close, ours, theirs
from tests.support.peers import MODELS, TEXTS, TOKENIZERS, brought, peer, peer_in, rows_of

UNREAD = ("cls.predictions.bias", "lm_head.bias")
"""Of BERT and RoBERTa, whose untied output matrix has another bias."""
KEEP = torch.arange(16) < torch.tensor([[16], [9], [1]])


class Row(NamedTuple):
    """A model of the table, a head of its family's file, and what is asked of it."""

    name: str
    head: str = ""
    changes: dict[str, Any] = {}  # noqa: RUF012  is never changed


CLASS, NUMBER = {"num_labels": 3}, {"num_labels": 1}
MULTI = {"id2label": {0: "no", 1: "yes"}, "problem_type": "multi_label_classification"}
ROWS = {
    **{
        f"{name}: {head}": Row(name, head, CLASS if head == "classification" else {})
        for name, family in FAMILIES.items()
        for head in family.heads
        if head != "embedding" or family.shape != "decoder"
    },
    **{name: Row(name) for name in ("roberta, padded with 0", "llama, wide heads", "gpt_neox in sequence, tied")},
    **{f"{name}: multi": Row(name, "classification", MULTI) for name in ("gpt2", "bert")},
    **{f"{name}: number": Row(name, "classification", NUMBER) for name in ("gpt2", "bert")},
    "modernbert: mean": Row("modernbert", "classification", {**NUMBER, "classifier_pooling": "mean"}),
}
DAILY = (
    *("gpt2: number", "qwen2: classification", "llama, wide heads", "gpt_neox in sequence, tied", "gemma: causal"),
    *("mistral: causal", "mpt: causal", "bert: multi", "bert: next-sentence", "roberta, padded with 0"),
    *("eurobert: tagging", "distilbert: question-answering", "modernbert: mean", "t5: causal", "bart: causal"),
)
"""Each kind of head and of file. That all families are told alike is tested below."""


def inputs_of(model: Any) -> dict[str, Any]:
    """Tokens (3, 16) that are the padding token where `KEEP` is not, and nowhere else; with second segments."""
    padding = model.config.pad_token_id or 0

    def tokens(seed: int) -> torch.Tensor:
        drawn = torch.randint(100, (3, 16), generator=torch.Generator().manual_seed(seed))
        return torch.where(KEEP, drawn + (drawn >= padding), padding)

    inputs = {"input_ids": tokens(0), "attention_mask": KEEP.long()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens(1)
    if getattr(model.config, "type_vocab_size", 1) > 1:
        inputs["token_type_ids"] = (torch.arange(16) >= torch.tensor([[7], [16], [12]])).long()
    return inputs


def test_all_families_are_in_the_table() -> None:
    assert {model_type for model_type, _ in MODELS.values()} == FAMILIES.keys() == TOKENIZERS.keys() & FAMILIES.keys()


@pytest.mark.parametrize("name", nightly_but(ROWS, *DAILY))
def test_in_and_out_and_back(name: str, tmp_path: Path) -> None:
    """The same ids and outputs; what is exported are the same tensors, and comes in as the same recipe."""
    row = ROWS[name]
    model_type = MODELS[row.name][0]
    model = peer_in(tmp_path / "in", peer(row.name, row.head, **row.changes))
    loaded, inputs = brought(tmp_path / "in"), inputs_of(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "in")
    assert rows_of(loaded) == [tokenizer(text, split_special_tokens=True)["input_ids"] for text in TEXTS]
    close(ours(loaded, inputs), theirs(model, inputs))
    exported = export(str(loaded.run_path), tmp_path / "out")
    assert (exported.family.model_type, exported.architecture) == (model_type, type(model).__name__)
    again, found = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    for tensor_name, tensor in again.state_dict().items():
        is_read = tensor_name not in UNREAD or model.config.tie_word_embeddings
        if is_read and not tensor_name.startswith("pooler."):
            assert torch.equal(tensor, model.state_dict()[tensor_name]), tensor_name
    if row.head in ("classification", "tagging") and "num_labels" not in NUMBER | row.changes:
        assert again.config.id2label == model.config.id2label
    back = brought(tmp_path / "out").recipe
    assert (back.model, back.objective) == (loaded.recipe.model, loaded.recipe.objective)
    if exported.is_generative:
        assert_same_text(loaded, model)
        if model_type in {*GGUF_FAMILIES, "mistral"}:
            assert_same_gguf(loaded, model, tmp_path)


def assert_same_text(loaded: LoadedModel, model: Any) -> None:
    """12 tokens by greedy search, of two texts in one batch."""
    roles = loaded.tokenizer.roles
    never = sorted({*roles.specials, *range(loaded.tokenizer.vocab_size, model.config.vocab_size)} - roles.ends)
    answers = loaded.prompt_format.answers
    settings = transformers.GenerationConfig(
        **{"max_new_tokens": 12, "do_sample": False, "suppress_tokens": never, "pad_token_id": roles.pad},
        eos_token_id=sorted(roles.ends),
        decoder_start_token_id=model.config.decoder_start_token_id if answers else None,
    )
    found = TextGenerator(loaded).completions(TEXTS[:2], SamplingParams("greedy", max_new_tokens=12))
    more = {"decoder_input_ids": torch.tensor([roles.starts])} if answers else {}
    for completion, row in zip(found, rows_of(loaded), strict=False):
        row_BT = torch.tensor([row])
        with torch.no_grad():
            wanted = model.generate(row_BT, attention_mask=torch.ones_like(row_BT), generation_config=settings, **more)
        assert list(completion.tokens) == wanted[0, len(roles.starts) if answers else len(row) :].tolist()


def assert_same_gguf(loaded: LoadedModel, model: Any, folder: Path) -> None:
    """A GGUF file has llama.cpp's tensors, and comes in as the same recipe but for dropout; or a key is in the way."""
    assert isinstance(loaded.recipe.model, Transformer)
    if loaded.recipe.model.pattern.kind == "window":
        with pytest.raises(UsageError) as refusal:
            export_gguf_and_modelfile(str(loaded.run_path), folder / "model.gguf", "f16")
        assert "model.pattern.kind" in str(refusal.value.where)
        return
    exported = export_gguf_and_modelfile(str(loaded.run_path), folder / "model.gguf", "f16")
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == exported.family.architecture)
    table = gguf.get_tensor_name_map(arch, loaded.recipe.model.n_layers)
    names = [name for name in model.state_dict() if name != "lm_head.weight" or not model.config.tie_word_embeddings]
    written = {tensor.name for tensor in gguf.GGUFReader(folder / "model.gguf").tensors}
    assert written == {table.get_name(name, try_suffixes=(".weight", ".bias")) for name in names}
    back = brought(folder / "model.gguf")
    recipes = [one.recipe.with_unvalidated_values({"model.dropout": 0.0}) for one in (back, loaded)]
    assert recipes[0].model == recipes[1].model
    inputs = inputs_of(model)
    close(ours(back, inputs), theirs(model, inputs), 0.02)
    assert [back.tokenizer.encode(text) for text in TEXTS] == [loaded.tokenizer.encode(text) for text in TEXTS]


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_what_was_read(name: str) -> None:
    """Of each model of the table, the same model and the same tensors."""
    model = language_model(name)
    family, tensors = FAMILIES[MODELS[name][0]], model.state_dict()
    names = family.map_canonical_to_stored_names(tensors)
    spec, objective = described(model.config.to_dict(), list(names))
    weights, ours = family.list_parameter_mappings(spec, objective), read_without_files(model).state_dict()
    config = family.build_verified_config(spec, objective)
    assert described({"pad_token_id": 0, **config}, list(names)) == (spec, objective)
    assert ours.keys() >= {weight.name for weight in weights}
    for weight in weights:
        split = weight.layout.split(ours[weight.name])
        for published, tensor in zip(weight.published_names, split, strict=True):
            is_read = names[published] not in UNREAD or model.config.tie_word_embeddings
            assert not is_read or torch.equal(tensor, tensors[names[published]]), published


def test_a_body_beside_a_head_that_no_recipe_has(tmp_path: Path) -> None:
    """The discriminator of ELECTRA."""
    model = peer_in(tmp_path / "in", ("ElectraForPreTraining", *peer("electra")[1:]))
    loaded, inputs = brought(tmp_path / "in"), inputs_of(model)
    assert loaded.recipe.objective.kind == "embedding"
    close(ours(loaded, inputs), theirs(model.electra, inputs))


def test_a_decoder_without_its_output_bias(tmp_path: Path) -> None:
    """As facebook/bart-base, whose logits have no bias."""
    model = peer_in(tmp_path / "in", ("BartModel", *peer("bart")[1:]))
    loaded, inputs = brought(tmp_path / "in"), inputs_of(model)
    export(str(loaded.run_path), tmp_path / "out")
    again = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in again.model.state_dict().items())
    assert not again.final_logits_bias.any()
    close(ours(loaded, inputs), theirs(again, inputs))
