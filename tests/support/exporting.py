"""Runs of each family that exports, beside the same models of Transformers."""

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model.heads import Classifier, SpanReader, Tagger, TokenHeadModel
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
    "llama": ("LlamaForCausalLM", recipe_of(LLAMA, CAUSAL, **DOCUMENTS), "bpe"),
    "llama classifier": ("LlamaForSequenceClassification", recipe_of(LLAMA, classes("a", "b", task="multi")), "bpe"),
    "bert of pairs": ("BertForPreTraining", recipe_of({**BERT, "next_sentence_head": True}, NSP), "wordpiece"),
    "bert without segments": (
        "BertForMaskedLM",
        recipe_of({**ONE_TEXT, "norm": {"place": "post", "embedding": True}}, MASKED),
        "bpe",
    ),
    "distilbert": ("DistilBertForMaskedLM", recipe_of(ONE_TEXT, MASKED), "wordpiece"),
    "bert classifier": ("BertForSequenceClassification", recipe_of(BERT, classes("bad", "so so", "good")), "wordpiece"),
    "bert of numbers": ("BertForSequenceClassification", recipe_of(BERT, NUMBER), "wordpiece"),
    "bert vectors": ("BertModel", recipe_of(BERT, {"kind": "embedding"}), "wordpiece"),
    "roberta": ("RobertaForMaskedLM", recipe_of(ROBERTA, MASKED), "bpe"),
    "t5": ("T5ForConditionalGeneration", recipe_of(T5, SEQ2SEQ), "bpe"),
    "marian": ("MarianMTModel", recipe_of(MARIAN, SEQ2SEQ), "bpe"),
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


def ours(loaded: LoadedModel, inputs: Any) -> Tensor:
    """Logits, scores or hidden states of inputs of Transformers, where there is no padding."""
    tokens_BT, keep_BT, lm = inputs["input_ids"], inputs["attention_mask"].bool(), loaded.model
    spec: Any = loaded.recipe.objective
    with torch.no_grad():
        if loaded.recipe.model.reads == "source":
            batch = Batch(inputs["decoder_input_ids"], source_BS=tokens_BT, source_keep_BS=keep_BT)
            return lm.logits(lm(batch).hidden_BTD)
        batch = Batch(tokens_BT, keep_BT=keep_BT, segments_BT=inputs.get("token_type_ids"))
        if isinstance(lm, Classifier):
            scores: Tensor = lm.run_head(batch).scores
            return scores * float(getattr(spec, "scale", None) or 1.0) + float(getattr(spec, "center", None) or 0.0)
        if isinstance(lm, Tagger | SpanReader):
            return TokenHeadModel.run_head(lm, batch).scores[keep_BT]
        hidden_BTD: Tensor = lm(batch).hidden_BTD
        if spec.kind == "embedding":
            return hidden_BTD[keep_BT]
        logits: Tensor = lm.logits(hidden_BTD)[keep_BT]
        if getattr(loaded.recipe.model, "next_sentence_head", False):
            return torch.cat((logits.flatten(), lm.next_sentence_logits(hidden_BTD).flatten()))  # type: ignore[operator]
        return logits


def theirs(peer: Any, inputs: Any) -> Tensor:
    """The same of theirs."""
    keep_BT = inputs["attention_mask"].bool()
    with torch.no_grad():
        found = peer(**inputs)
    if "start_logits" in found:
        result = torch.stack((found.start_logits, found.end_logits), -1)[keep_BT]
    elif "seq_relationship_logits" in found:
        result = torch.cat((found.prediction_logits[keep_BT].flatten(), found.seq_relationship_logits.flatten()))
    elif "logits" not in found:
        result = found.last_hidden_state[keep_BT]
    else:
        is_row = peer.config.is_encoder_decoder or "SequenceClassification" in type(peer).__name__
        result = found.logits if is_row else found.logits[keep_BT]
    assert isinstance(result, Tensor)
    return result


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


def executed(folder: Path, **values: Any) -> dict[str, Any]:
    """The variables of the code on a model card, which is told other texts than those that it shows."""
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    for name, value in values.items():
        line = f"{name} = {value!r}".replace("\\", r"\\")
        code, n = re.subn(rf"^{name} = .*$", line, code, flags=re.MULTILINE)
        assert n == 1, f"{name} in {code}"
    found: dict[str, Any] = {}
    exec(code.replace("DIRECTORY", str(folder)), found)
    return found
