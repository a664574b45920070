"""The code on a model card: how an exported model is opened with Transformers, and of a head how it predicts."""

from collections.abc import Iterator

from lmtool.interop.families.encoder import TOKEN_HEADS
from lmtool.interop.forms import Form
from lmtool.interop.notes import HEAD
from lmtool.model.classifier import pooling
from lmtool.recipe.spec.objective import Classification, Embedding, Masked, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe

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
    match recipe.objective:
        case Classification():
            return "AutoModelForSequenceClassification"
        case Tagging() | QuestionAnswering():
            return f"AutoModel{TOKEN_HEADS[recipe.objective.kind][0]}"
        case Masked():
            return "AutoModelForMaskedLM"
        case Embedding():
            return "AutoModel"
    return "AutoModelForSeq2SeqLM" if recipe.model.reads == "source" else "AutoModelForCausalLM"


def usage(form: Form) -> list[str]:
    """Lines of code."""
    auto = "AutoModel" if form.beside else auto_class(form.recipe)
    code = [
        *([] if not form.has_head else ["import torch"]),
        *(["from safetensors.torch import load_file"] if form.beside else []),
        *(["from torch.nn.functional import linear"] if form.beside else []),
        f"from transformers import {auto}, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY")',
        f'model = {auto}.from_pretrained("DIRECTORY")  # {form.published.architecture}',
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


def _hidden(layers: str, subscript: str = "") -> list[str]:
    """The hidden states of the last layer, or the mix of all."""
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


def _token_scores(form: Form, layers: str) -> Iterator[str]:
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
