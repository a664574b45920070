"""The model card of an exported model: what it is, how it is opened, how it was made, and what was measured."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from lmtool import __version__
from lmtool.export.forms import Form
from lmtool.inference.base import Base
from lmtool.interop.families.encoder import CLASSES
from lmtool.interop.names import HEAD
from lmtool.model.heads import pooling
from lmtool.printable import plain
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.objective import Classification, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe

PLACEHOLDER = "BASE"
"""Stands for the path of a base model that is not on the Hub."""

PIPELINES = {
    "classification": "text-classification",
    "tagging": "token-classification",
    "question-answering": "question-answering",
    "masked": "fill-mask",
    "embedding": "feature-extraction",
}


def model_card(base: Base, form: Form) -> str:
    """README.md with the metadata that the Hugging Face Hub reads."""
    pipeline, notes = _pipeline(form.recipe), []
    if form.beside:
        pipeline = PIPELINES["embedding"]  # that of the task would make a new head
        notes = [f"`{HEAD}` is its head, which no class of Transformers has: {form.beside}.", ""]
    return _card(base, ["library_name: transformers", f"pipeline_tag: {pipeline}"], usage(form), notes)


def adapter_card(base: Base, published: str | None, of: Base, labels: Mapping[str, str] | None) -> str:
    """The same for adapters.

    published: the name of their base on the Hub, if it is there. of: the run that they adapt. labels: by the number of
    the score, of a classifier.
    """
    auto = auto_class(base.recipe)
    more = "" if labels is None else f", num_labels={len(labels)}, id2label={json.dumps(labels, ensure_ascii=True)}"
    code = [
        "from peft import PeftModel",
        f"from transformers import {auto}, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        f'base = {auto}.from_pretrained("{published or PLACEHOLDER}"{more})',
        'model = PeftModel.from_pretrained(base, "DIRECTORY")',
    ]
    metadata = ["library_name: peft", f"pipeline_tag: {_pipeline(base.recipe)}"]
    notes = [f"`{PLACEHOLDER}` is the base model: {plain(of.run.name)}, as `lmtool export` writes it.", ""]
    if published is not None:
        metadata.append(f"base_model: {published}")
        notes = []
    return _card(base, metadata, code, notes)


def without_folders(text: str) -> str:
    """A text in which absolute paths are names of files: a card is read by others."""
    return re.sub(r"""(^|[\s"':])/(?:[^/"'\n]+/)+""", r"\1", text)


def _pipeline(recipe: Recipe) -> str:
    """The Hub's name of the task."""
    if recipe.model.reads == "source":
        return "text2text-generation"
    return PIPELINES.get(recipe.objective.kind, "text-generation")


def _card(base: Base, metadata: Sequence[str], code: Sequence[str], notes: Sequence[str]) -> str:
    run, recipe = base.run, base.recipe
    lines = [
        "---",
        *metadata,
        "tags: [lmtool]",
        "---",
        "",
        f"# {plain(run.name)}",
        "",
        f"{plain(run.info.summary)}; exported at step {base.checkpoint.step} by lmtool {__version__}.",
        "",
        "```python",
        *code,
        "```",
        "",
        *notes,
        *_origin(base),
        *_data(base),
        *_measured(base),
        "## Recipe",
        "",
        "```yaml",
        without_folders(dump(recipe).rstrip()),
        "```",
        "",
    ]
    return "\n".join(lines)


def _origin(base: Base) -> list[str]:
    run = base.run
    if run.origin is not None:
        revision = f", revision {run.origin.revision}" if run.origin.revision else ""
        return [f"The weights were imported from {plain(without_folders(run.origin.reference))}{revision}.", ""]
    if (before := run.info.base) is not None:
        return [f"It was initialized from {plain(before.checkpoint)} of {plain(before.run)}.", ""]
    return []


def _data(base: Base) -> list[str]:
    data = base.recipe.data
    named = [*data.sources, *data.tasks]
    if not named:
        return []
    files = ", ".join(plain(source.replace("\\", "/").rpartition("/")[2]) for source in named)
    return ["## Training data", "", f"{files}; SHA-256 of its tokens {base.run.info.fingerprints.data[:16]}.", ""]


def _measured(base: Base) -> list[str]:
    """The last validation, and the results of the best checkpoint on a table."""
    rows: list[tuple[str, str]] = []
    validated = base.run.validated
    if validated is not None and validated.best_value is not None:
        name = base.recipe.evaluation.metric
        rows.append((f"best validation {name}", f"{validated.best_value:.4f} (step {validated.best_step})"))
    for task, results in base.run.all_results.items():
        numbers = ((name, value) for name, value in results.items() if isinstance(value, float))
        rows += [(f"{task} {results['part']} {name}".strip(), f"{value:.4f}") for name, value in numbers]
    if not rows:
        return []
    return ["## Measured", "", "| | |", "|---|---|", *(f"| {plain(name)} | {value} |" for name, value in rows), ""]


_NONLINEAR = {"tanh": "torch.tanh", "relu": "torch.relu", "gelu": "torch.nn.functional.gelu"}

_POOLED = {
    "first": ["vectors = hidden[:, 0]"],
    "last": ["vectors = hidden[torch.arange(len(hidden)), keep.sum(1) - 1]"],
    "mean": ["vectors = (hidden * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)"],
    "max": ["vectors = hidden.masked_fill(~keep[..., None], -torch.inf).amax(1)"],
    "attention": [
        'keys = torch.tanh(linear(hidden, head["pool.key.weight"], head["pool.key.bias"]))',
        'shares = linear(keys, head["pool.query.weight"]).masked_fill(~keep[..., None], -torch.inf).softmax(1)',
        "vectors = (shares * hidden).sum(1)",
    ],
}

_VITERBI = [
    'best, ways = head["crf.start_C"] + scores[0], []',
    "for score in scores[1:]:",
    '    best, way = (best[:, None] + head["crf.transition_PC"]).max(0)',
    "    best, ways = best + score, [way, *ways]",
    'path = [int((best + head["crf.end_C"]).argmax())]',
    "for way in ways:",
    "    path.insert(0, int(way[path[0]]))",
]
"""The most probable tags by a conditional random field."""


def auto_class(recipe: Recipe) -> str:
    """Transformers' class that opens a model of this recipe for its task."""
    generates = "ForSeq2SeqLM" if recipe.model.reads == "source" else "ForCausalLM"
    return "AutoModel" + {**CLASSES, "embedding": ""}.get(recipe.objective.kind, generates)


def usage(form: Form) -> list[str]:
    """The code that opens an exported model with Transformers, and predicts with its head."""
    auto = "AutoModel" if form.beside else auto_class(form.recipe)
    code = [
        *(["import torch"] if form.has_head else []),
        *(["from safetensors.torch import load_file", "from torch.nn.functional import linear"] if form.beside else []),
        f"from transformers import {auto}, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        f'model = {auto}.from_pretrained("DIRECTORY")  # {form.architecture}',
        *([f'head = load_file("DIRECTORY/{HEAD}")'] if form.beside else []),
    ]
    match form.recipe.objective:
        case Classification() as spec:
            return [*code, "", *_classifying(form, spec)]
        case Tagging() as spec:
            return [*code, "", *_tagging(form, spec)]
        case QuestionAnswering() as spec:
            return [*code, "", *_answering(form, spec)]
    return code


def _classifying(form: Form, spec: Classification) -> Iterator[str]:
    two = len(form.recipe.data.text_columns) > 1
    texts = '[("A first text", "and its second"), ("Another", "and its own")]' if two else '["A text", "Another one"]'
    yield f"texts = {texts}"
    yield 'inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")'
    yield "with torch.no_grad():"
    if form.beside:
        yield from (f"    {line}" for line in _hidden(spec.layers))
        yield '    keep = inputs["attention_mask"].bool()'
        yield from (f"    {line}" for line in _POOLED[pooling(spec, form.recipe.model)])
        yield from (f"    {line}" for line in _dense(form, spec))
        yield '    scores = linear(vectors, head["head.weight"], head.get("head.bias"))'
    else:
        yield "    scores = model(**inputs).logits"
    if spec.single_score:
        yield "scores = torch.cat((torch.zeros_like(scores), scores), 1)"
    if spec.task == "number":
        scaled = f" * {spec.scale} + {spec.center}" if form.beside else ""
        yield f"numbers = scores[:, 0]{scaled}"
        yield "print(numbers)"
    else:
        yield f"probabilities = scores.{'softmax(1)' if spec.task == 'class' else 'sigmoid()'}"
        yield "print(model.config.id2label, probabilities)"


def _hidden(layers: str | int, subscript: str = "") -> list[str]:
    """The hidden states of the last layer or another one, or the mix of all."""
    if isinstance(layers, int):
        return [f"hidden = model(**inputs, output_hidden_states=True).hidden_states[{layers}]{subscript}"]
    if layers == "last":
        return [f"hidden = model(**inputs).last_hidden_state{subscript}"]
    first = "1:" if layers == "mix-hidden" else ":"
    return [
        f"layers = model(**inputs, output_hidden_states=True).hidden_states[{first}]",
        'shares = head["mix.scalars_L"].softmax(0)',
        f'hidden = head["mix.gamma"] * sum(share * layer{subscript} for share, layer in zip(shares, layers))',
    ]


def _dense(form: Form, spec: Classification) -> Iterator[str]:
    if spec.dense == "none":
        return
    yield f'vectors = {_NONLINEAR[spec.dense]}(linear(vectors, head["dense.weight"], head.get("dense.bias")))'
    norm = form.model.norm
    if not spec.dense_norm or norm.kind == "none":
        return
    weight = 'head["dense_norm.weight"]' + " + 1" * norm.unit_offset
    bias = ', head.get("dense_norm.bias")' if norm.kind == "layer" else ""
    yield f"vectors = torch.nn.functional.{norm.kind}_norm(vectors, vectors.shape[1:], {weight}{bias}, eps={norm.eps})"


def _token_scores(form: Form, layers: str | int) -> Iterator[str]:
    """The scores of all tokens of one row, where the class of the model does not have them."""
    yield from (f"    {line}" for line in _hidden(layers, "[0]"))
    yield '    scores = linear(hidden, head["head.weight"], head["head.bias"])'


def _tagging(form: Form, spec: Tagging) -> Iterator[str]:
    yield 'words = ["A", "sentence", "in", "words"]'
    yield 'inputs = tokenizer(" ".join(words), truncation=True, return_offsets_mapping=True, return_tensors="pt")'
    yield 'places = inputs.pop("offset_mapping")[0].tolist()'
    yield "with torch.no_grad():"
    yield from _token_scores(form, spec.layers) if form.beside else ["    scores = model(**inputs).logits[0]"]
    yield "firsts, start = [], 0  # the first token of each word"
    yield "for word in words:"
    yield "    firsts.append(next(i for i, (a, b) in enumerate(places) if b > start and a < start + len(word)))"
    yield "    start += len(word) + 1"
    yield "scores = scores[firsts]"
    yield from _VITERBI if spec.crf else ["path = scores.argmax(1).tolist()"]
    yield "tags = [model.config.id2label[i] for i in path]"
    yield "print(tags)"


def _answering(form: Form, spec: QuestionAnswering) -> Iterator[str]:
    yield 'question = "What is asked?"'
    yield 'context = "A text with the answer in it."'
    yield (
        'inputs = tokenizer(question, context, truncation="only_second", return_offsets_mapping=True, '
        'return_tensors="pt")'
    )
    yield 'places = inputs.pop("offset_mapping")[0].tolist()'
    yield "inside = [i for i, part in enumerate(inputs.sequence_ids(0)) if part == 1]"
    yield "with torch.no_grad():"
    if form.beside:
        yield from _token_scores(form, spec.layers)
    else:
        yield "    found = model(**inputs)"
        yield "    scores = torch.stack((found.start_logits[0], found.end_logits[0]), 1)"
    yield f"spans = [(i, j) for i in inside for j in inside if i <= j < i + {spec.max_answer}]"
    yield "first, last = max(spans, key=lambda span: float(scores[span[0], 0] + scores[span[1], 1]))"
    yield "answer = context[places[first][0] : places[last][1]].strip()"
    if spec.null_threshold is not None:
        null = 0 if form.model.reads == "both" else -1
        yield f"if scores[{null}].sum() - scores[first, 0] - scores[last, 1] > {spec.null_threshold}:"
        yield '    answer = ""  # there is none'
    yield "print(answer)"
