"""Runs of each family that exports, beside the same models of Transformers."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model.heads import Classifier, Tagger, TokenHeadModel
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.load import LoadedModel
from tests.interop.runs import SMALL, recipe_of, shipped

DOCUMENTS: dict[str, Any] = {"data": {"split": "document"}}
CAUSAL, MASKED, SEQ2SEQ = {"kind": "causal"}, {"kind": "masked"}, {"kind": "seq2seq"}
GPT2 = {**SMALL, "activation": "gelu-tanh"}
LLAMA = {
    **SMALL,
    "n_kv_heads": 2,
    "activation": "swiglu",
    "norm": {"kind": "rms"},
    "position": {"kind": "rotary"},
    "bias": False,
    "tie_embeddings": False,
}
MPT = {**shipped("tiny"), "d_model": 16, "n_layers": 2, "context": 40}
BERT = {**shipped("bert-base"), **SMALL, "n_segments": 2}
ONE_TEXT = {**BERT, "next_sentence_head": False, "n_segments": 0}
ROBERTA = {**shipped("roberta-tiny"), **SMALL, "position": {"kind": "learned", "offset": 1}}
T5 = {**shipped("t5-tiny"), **SMALL}
MARIAN = {**shipped("transformer-tiny"), **SMALL}
PEGASUS = {**shipped("transformer-small"), **SMALL}
NSP = {"kind": "masked", "next_sentence": True}


def classes(*labels: str, task: str = "class", **more: Any) -> dict[str, Any]:
    return {"kind": "classification", "task": task, "labels": labels, **more}


NUMBER = classes(task="number", center=20.0, scale=3.0)
CASES: dict[str, tuple[str, Recipe, str]] = {
    "gpt2": ("GPT2LMHeadModel", recipe_of(GPT2, CAUSAL, **DOCUMENTS), "bpe"),
    "gpt2 of one stream": ("GPT2LMHeadModel", recipe_of(GPT2, CAUSAL), "bpe"),
    "gpt2 of answers": ("GPT2LMHeadModel", recipe_of(GPT2, SEQ2SEQ), "bpe"),
    "gpt2 classifier": ("GPT2ForSequenceClassification", recipe_of(GPT2, classes("a", "b", "c")), "bpe"),
    "llama": ("LlamaForCausalLM", recipe_of(LLAMA, CAUSAL, **DOCUMENTS), "bpe"),
    "llama classifier": ("LlamaForSequenceClassification", recipe_of(LLAMA, classes("a", "b", task="multi")), "bpe"),
    "mpt": ("MptForCausalLM", recipe_of(MPT, CAUSAL, **DOCUMENTS), "bpe"),
    "bert": ("BertForMaskedLM", recipe_of({**BERT, "next_sentence_head": False}, MASKED), "wordpiece"),
    "bert of pairs": ("BertForPreTraining", recipe_of({**BERT, "next_sentence_head": True}, NSP), "wordpiece"),
    "bert without segments": (
        "BertForMaskedLM",
        recipe_of({**ONE_TEXT, "norm": {"place": "post", "embedding": True}}, MASKED),
        "bpe",
    ),
    "distilbert": ("DistilBertForMaskedLM", recipe_of(ONE_TEXT, MASKED), "wordpiece"),
    "bert classifier": ("BertForSequenceClassification", recipe_of(BERT, classes("bad", "so so", "good")), "wordpiece"),
    "bert of labels": (
        "BertForSequenceClassification",
        recipe_of(BERT, classes("x", "y", task="multi")),
        "wordpiece",
    ),
    "bert of numbers": ("BertForSequenceClassification", recipe_of(BERT, NUMBER), "wordpiece"),
    "bert vectors": ("BertModel", recipe_of(BERT, {"kind": "embedding"}), "wordpiece"),
    "roberta": ("RobertaForMaskedLM", recipe_of(ROBERTA, MASKED), "bpe"),
    "roberta classifier": ("RobertaForSequenceClassification", recipe_of(ROBERTA, classes("a", "b")), "bpe"),
    "t5": ("T5ForConditionalGeneration", recipe_of(T5, SEQ2SEQ), "bpe"),
    "marian": ("MarianMTModel", recipe_of(MARIAN, SEQ2SEQ), "bpe"),
    "pegasus": ("PegasusForConditionalGeneration", recipe_of(PEGASUS, SEQ2SEQ), "bpe"),
}
"""The class, the recipe and the tokenizer."""

AUTO = {
    "causal": "AutoModelForCausalLM",
    "masked": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
    "tagging": "AutoModelForTokenClassification",
    "embedding": "AutoModel",
}


def auto_of(recipe: Recipe) -> str:
    if recipe.model.reads == "source":
        return "AutoModelForSeq2SeqLM"
    return AUTO.get(recipe.objective.kind, "AutoModelForCausalLM")


def ours(loaded: LoadedModel, peer_inputs: Any) -> Tensor:
    """Logits or scores of the inputs that a tokenizer of theirs made."""
    segments = peer_inputs.get("token_type_ids")
    tokens_BT, keep_BT = peer_inputs["input_ids"], peer_inputs["attention_mask"].bool()
    lm = loaded.model
    with torch.no_grad():
        if loaded.recipe.model.reads == "source":
            batch = Batch(peer_inputs["decoder_input_ids"], source_BS=tokens_BT, source_keep_BS=keep_BT)
            return lm.logits(lm(batch).hidden_BTD)
        batch = Batch(tokens_BT, keep_BT=keep_BT, segments_BT=segments)
        if isinstance(lm, Classifier):
            scores = lm.run_head(batch).scores
            spec = loaded.recipe.objective
            return scores * (getattr(spec, "scale", None) or 1.0) + (getattr(spec, "center", None) or 0.0)
        if isinstance(lm, Tagger):
            return TokenHeadModel.run_head(lm, batch).scores[keep_BT]
        hidden = lm(batch).hidden_BTD
        return (hidden if loaded.recipe.objective.kind == "embedding" else lm.logits(hidden))[keep_BT]


def theirs(peer: Any, recipe: Recipe, peer_inputs: Any) -> Tensor:
    with torch.no_grad():
        found = peer(**peer_inputs)
    if recipe.objective.kind == "embedding":
        kept: Tensor = found.last_hidden_state[peer_inputs["attention_mask"].bool()]
        return kept
    logits: Tensor = found.logits
    is_row = recipe.objective.kind == "classification" or recipe.model.reads == "source"
    return logits if is_row else logits[peer_inputs["attention_mask"].bool()]


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def executed(folder: Path, **values: Any) -> dict[str, Any]:
    """The variables of the code on a model card, which is told other texts than those that it shows."""
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    for name, value in values.items():
        code, n = re.subn(rf"^{name} = .*$", lambda _, line=f"{name} = {value!r}": line, code, flags=re.MULTILINE)
        assert n == 1, f"{name} in {code}"
    found: dict[str, Any] = {}
    exec(code.replace("DIRECTORY", str(folder)), found)
    return found
