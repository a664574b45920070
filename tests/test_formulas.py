"""What the commands of docs/course.md train is what its formulas say.

Each model that a topic trains is built from the recipe and settings on the page, smaller and with random weights, and
equals the plain version in tests/reference/.
"""

import re
import shlex
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmtool.apps.sweeping.grid import list_grid_points, list_one_at_a_time_points, parse_fixed_and_swept_settings
from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel, add_objective_head, build
from lmtool.model.averaging import AveragingModel, NaiveBayesScaledHead
from lmtool.model.heads import Classifier, LanguageModelWithTaskHead, TokenHeadModel
from lmtool.model.recurrent import BidirectionalLanguageModel
from lmtool.model.seq2seq import RecurrentEncoderDecoder
from lmtool.objective import Example, VocabularyInfo
from lmtool.objective import build_objective_for_vocabulary as build_objective
from lmtool.recipe.finetuning import ParentRun, TableProperties, resolve_continued_training, resolve_finetuning
from lmtool.recipe.load import parse_settings
from lmtool.recipe.resolve import resolve
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import Averaging, NGram, Ppmi
from tests.model import recurrent_weights
from tests.reference import classifiers, ngram, recurrent, skipgram, vectors
from tests.support import tiny
from tests.support.docs import PAGE, TOPICS
from tests.support.ngrams import counted, log_p, some_documents
from tests.support.recurrent import by_loops
from tests.support.word_vectors import COUNTS, TEXT, WORDS, randomised
from tests.support.word_vectors import counted as counted_pairs

Array = NDArray[np.float64]
LABELS = ["a", "b", "c"]


@dataclass
class Training:
    """A command that trains. name: of its recipe. parent: what trained the run that it begins with."""

    words: list[str]
    name: str
    parent: "Training | None"

    @property
    def options(self) -> dict[str, str]:
        return {option: value for option, value in pairwise([*self.words, ""]) if option.startswith("-")}

    def resolved(self) -> Recipe:
        """The recipe that it trains by, but for what depends on its data."""
        options = self.options
        settings = [value for option, value in pairwise(self.words) if option == "-s"]
        settings += [f"{key}={options[option]}" for option, key in KEYS.items() if option in options]
        if self.parent is None:
            return resolve(self.name, parse_settings(settings)).recipe
        parent = ParentRun(self.parent.resolved(), "parent")
        if self.words[1] == "pretrain":
            return resolve_continued_training(parent, None, parse_settings(settings)).recipe
        kinds: dict[str, Any] = {".conll": "tagging", ".json": "question-answering"}
        shape = TableProperties(1000, "--task" in options, kinds.get(Path(self.words[2]).suffix, "classification"))
        return resolve_finetuning(parent, shape, parse_settings(settings)).recipe

    def small(self) -> Recipe:
        """That with small sizes, and with labels."""
        recipe = self.resolved()
        written = recipe.model_dump() | {"model": small(recipe.model), "data": {}}
        written["tuning"] = {"freeze": recipe.tuning.freeze}
        if "labels" in written["objective"]:
            written["objective"]["labels"] = LABELS[:2] if written["objective"].get("single_score") else LABELS
        return Recipe.model_validate(written)


RECIPES = Path(mkdtemp())
"""Recipes that commands of the page write."""

KEYS = {
    "--labels": "objective.task",
    "--freeze": "tuning.freeze",
    "--epochs": "training.epochs",
    "--lora-rank": "tuning.lora.rank",
}
"""Options, and the keys that they set."""


def small(model: Any) -> dict[str, Any]:
    """The keys of a model, with sizes that loops can read."""
    keys: dict[str, Any] = model.model_dump()
    if isinstance(model, Transformer):
        keys |= {"d_model": (4 if model.n_heads < 5 else 2) * model.n_heads, "context": 24, "vocab_size": tiny.VOCAB}
        keys |= {"n_layers": min(model.n_layers, 2), "d_ff": model.d_ff and 10}
        sizes = {"head_width": 4, "value_width": 6, "embedding_width": 6, "rank": 2, "score_width": 3}
        keys |= {key: size for key, size in sizes.items() if keys[key]}
        if keys["pattern"]["kind"] == "window":
            keys["pattern"] = keys["pattern"] | {"size": min(keys["pattern"]["size"], 3)}
    elif isinstance(model, Recurrent):
        keys |= {"d_model": 6, "n_layers": min(model.n_layers, 2), "features": None, "embeddings": None}
        if keys["attention"]:
            sizes = {"rank": 3, "score_width": 4}
            keys["attention"] = keys["attention"] | {key: size for key, size in sizes.items() if keys["attention"][key]}
    elif not isinstance(model, NGram):
        keys |= {"d_model": 5} | ({"buckets": 11} if isinstance(model, Averaging) else {})
    return keys


def _trainings() -> dict[str, list[Training]]:
    """The commands of each topic that train."""
    copies: dict[str, tuple[str, list[str]]] = {}
    runs: dict[str, Training] = {}
    found: dict[str, list[Training]] = {}
    models = "Models behind the topics"
    for topic, text in {models: PAGE.partition(f"\n## {models}\n")[2], **TOPICS}.items():
        blocks = "".join(re.findall(r"^```sh\n(.*?)^```$", text, flags=re.M | re.S))
        for name, recipe in re.findall(r"^cat > (\S+\.yaml) <<'END'\n(.*?)^END$", blocks, flags=re.M | re.S):
            copies[name] = str(RECIPES / name), []
            (RECIPES / name).write_text(recipe, encoding="utf-8")
        for command in map(unrolled, blocks.replace("\\\n", "").splitlines()):
            if copied := re.search(r"lmtool recipes show (\S+)(.*)> (\S+\.yaml)", command):
                copies[copied[3]] = copied[1], shlex.split(copied[2].partition("|")[0])
            parts = re.findall(r"lmtool (?:pretrain|finetune|sweep) (?:'[^']*'|[^;&|])*", command)
            for words in (words for part in parts for words in points_of(shlex.split(part))):
                training = Training(words, "", None)
                options = training.options
                name = options.get("--recipe", options.get("-r", ""))
                training.name, settings = copies.get(name, (name, []))
                if of_run := re.fullmatch(r"runs/(.+?)(?:/seed-\d+)?/recipe\.yaml", name):
                    other = runs[of_run[1]]
                    training.name, training.parent = other.name, other.parent
                    settings = other.words
                pairs = [pair for pair in pairwise(settings) if pair[0] == "-s"]
                if any(word.startswith("model={") for word in words):  # a model of another kind takes none of its keys
                    pairs = [pair for pair in pairs if not pair[1].startswith("model.")]
                words[3:3] = [word for pair in pairs for word in pair]
                if "--from" in options:
                    assert options["--from"] in runs, f"{topic}: no command before {words!r} trains what it begins with"
                    training.parent = runs[options["--from"]]
                elif not name and training.words[1] == "pretrain":
                    training.name = "default"
                if training.name or training.parent:
                    found.setdefault(topic, []).append(training)
                runs[options.get("-o", "").removeprefix("runs/")] = training
    return found


def points_of(words: list[str]) -> list[list[str]]:
    """The commands that train each point of a sweep; another command as it is."""
    if words[1] != "sweep":
        return [words]
    fixed, axes = parse_fixed_and_swept_settings([value for option, value in pairwise(words) if option == "-s"])
    points = list_one_at_a_time_points(axes, []) if "--one-at-a-time" in words else list_grid_points(axes)
    verb = "pretrain" if words[2].endswith(".txt") else "finetune"
    others = [word for before, word in pairwise(["", *words[3:]]) if "-s" not in (before, word)]
    settings = [[*fixed, *(f"{key}={value}" for key, value in point.items())] for point in points]
    return [["lmtool", verb, words[2], *others, *(word for one in keys for word in ("-s", one))] for keys in settings]


def unrolled(command: str) -> str:
    """A command without loops: each round of them behind the other."""
    while loop := re.search(r"\bfor (\w+) in ([^;]*); do (.*?); *done", command):
        name, values, body = loop.groups()
        rounds = [re.sub(rf"\$(?:{name}\b|{{{name}}})", value, body) for value in shlex.split(values)]
        command = command.replace(loop[0], "; ".join(rounds))
    return command


TRAININGS = _trainings()
FORMS = {
    "z_t = W_hy h_t + b_y": ("elman", "model.tie_embeddings=false"),
    "c_t = mean of h_1 .. h_{t-1}, z_t = W_cy [h_t; c_t] + b_y": (
        *("lstm-attention", "model.attention={score: dot, select: mean}", "model.tie_embeddings=false"),
    ),
    "c_t = sum of h_1 .. h_t": ("lstm-attention", "model.attention={score: dot, select: sum, present: true}"),
    "the best state": ("lstm-attention", "model.attention.select=hard", "model.tie_embeddings=false"),
    "the k best states": ("lstm-attention", "model.attention={score: dot, select: multi-hot, k: 2}"),
    "h_0 of the decoder = h_S of the encoder": ("seq2seq", "model.bidirectional_encoder=false"),
    "Luong: z_t = W [h_t; c_t] + b": ("seq2seq-luong", "model={bidirectional_encoder: false, tie_embeddings: false}"),
    "Bahdanau: h_t = f(h_{t-1}, [x_t; c_t])": ("seq2seq-bahdanau", "model.bidirectional_encoder=false"),
    "weighted means of the states themselves": ("tiny", "model.mixer=plain-attention", "model.score=dot"),
    "LN(x + FFN(LN(x + attention)))": ("tiny", "model.residual_from=layer", "model.norm.place=post"),
    "DeBERTa's attention": ("roberta-tiny", "model.position={kind: disentangled, max_distance: 4}"),
    "x_0 = E[w] + P": ("tiny", "model.position={kind: learned}", "model.bias=true"),
}
"""Forms of the lectures, and the recipe and settings that give them."""


def array(tensor: Any) -> Array:
    values: Array = tensor.detach().double().numpy()
    return values


def assert_same(found: torch.Tensor, wanted: Any, rtol: float = 1e-8, atol: float = 1e-9) -> None:
    np.testing.assert_allclose(array(found), wanted, rtol=rtol, atol=atol)


def drawn(model: LanguageModel) -> LanguageModel:
    """With random weights, in float64, in evaluation mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.double().eval().parameters():
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.4 * values if parameter.ndim > 1 else 0.5 + values)
    return model


def of_body(model: LanguageModel) -> LanguageModel:
    return model.body if isinstance(model, LanguageModelWithTaskHead) else model


def states(model: LanguageModel, recipe: Recipe, tokens_T: torch.Tensor) -> list[Array]:
    """What the plain version of a body gives to a head at each position: the last layer, or both halves of it."""
    spec, body = recipe.model, of_body(model)
    layers = getattr(recipe.objective, "layers", "last")
    if isinstance(spec, Transformer):
        plain = tiny.as_reference(body, spec)
        tower = plain.tower
        sees = (lambda t, s: True) if spec.shape == "encoder" else (lambda t, s: s <= t)
        every = [plain._embed(tokens_T.tolist())]
        lower = [replace(tower, layers=tower.layers[:n], final_norm=None) for n in range(1, len(tower.layers))]
        every += [part.read(every[0], sees) for part in (*lower, tower)]
    else:
        assert isinstance(spec, Recurrent)
        every = halves(body, spec, tokens_T)
    if layers == "last":
        return every[-1]
    if isinstance(layers, int):
        return every[layers]
    assert isinstance(model, LanguageModelWithTaskHead)
    assert model.mix is not None
    scalars, gamma = model.mix.scalars_L.tolist(), float(model.mix.gamma.detach())
    return list(recurrent.scalar_mix([np.stack(layer) for layer in every[model.first_mixed_layer :]], scalars, gamma))


def halves(body: LanguageModel, spec: Recurrent, tokens_T: torch.Tensor) -> list[list[Array]]:
    """Embeddings and layers of two networks that read in opposite directions, beside each other."""
    weights = recurrent_weights.Weights(body, spec)
    xs = weights.embed(tokens_T)
    assert isinstance(body, BidirectionalLanguageModel)
    forth, _ = recurrent.run_layers(weights.layers("forth.cells"), xs, residual=spec.residual)
    back, _ = recurrent.run_layers(weights.layers("back.cells"), xs[::-1], residual=spec.residual)
    rows = zip([xs, *forth], [xs, *(layer[::-1] for layer in back)], strict=True)
    return [[np.concatenate(pair) for pair in zip(*layer, strict=True)] for layer in rows]


def compare_transformer(model: LanguageModel, spec: Transformer) -> None:
    tokens_BT, sources = tiny.tokens(2, 5), [[3, 1, 4, 1], [5]]
    logits_BTV, plain = model.logits(tiny.read(model, tokens_BT, sources)), tiny.as_reference(model, spec)
    for found, row, source in zip(logits_BTV, tokens_BT.tolist(), sources, strict=True):
        if spec.shape == "prefix":
            wanted = plain.prefix([*source, *row], len(source))[len(source) :]
        elif spec.shape == "encoder-decoder":
            wanted = plain.answer(source, row)
        else:
            is_causal = spec.shape == "decoder" and spec.causal_mask
            wanted = plain.causal(row) if is_causal else plain.both_sides(row)[0]
        assert_same(found, wanted)


def compare_recurrent(model: LanguageModel, spec: Recurrent) -> None:
    tokens_T, source_S = tiny.tokens(6), tiny.tokens(4, seed=1)
    weights = recurrent_weights.Weights(model, spec)
    xs = weights.embed(tokens_T)
    if isinstance(model, RecurrentEncoderDecoder):
        found = model.logits(model(Batch(tokens_T[None], source_BS=source_S[None])).hidden_BTD)[0]
        assert_same(found, by_loops(model, spec, source_S, tokens_T)[0])
        return
    found = model.logits(model(Batch(tokens_T[None])).hidden_BTD)[0]
    if isinstance(model, BidirectionalLanguageModel):
        layers = halves(model, spec, tokens_T)
        for ours, wanted in zip(model.hidden_states_by_layer(Batch(tokens_T[None])), layers, strict=True):
            assert_same(ours[0], np.stack(wanted))
        hidden = [h[: spec.d_model] for h in layers[-1]]
    elif spec.attention is None:
        hidden = recurrent.run_layers(weights.layers("rnn.cells"), xs, residual=spec.residual)[0][-1]
    else:
        how = spec.attention
        score = weights.score() if how.select not in ("sum", "mean") else lambda q, k: 0.0
        hidden, _ = recurrent.remembering(weights.layers("rnn.cells"), xs, score, how.select, how.k, how.present)
    assert_same(found, weights.logits(hidden))


def compare_averaging(model: LanguageModel, recipe: Recipe) -> None:
    """W x + b, or W h + b, of texts that were counted before where there are counts."""
    assert isinstance(model, Classifier)
    body, spec, tokens_BT = model.body, recipe.model, tiny.tokens(4, 6)
    assert isinstance(body, AveragingModel)
    assert isinstance(spec, Averaging)
    model.fit_idf_and_log_ratios_([Batch(tokens_BT, labels_B=torch.tensor([0, 1, 2, 0]))])
    features = [classifiers.features(text, tiny.VOCAB, spec.ngrams, spec.buckets) for text in tokens_BT.tolist()]
    if body.owner_K is not None:
        hashes = {h % spec.buckets for h in body.owner_K.tolist() if h >= 0}
        assert hashes
        kept = [[body._feature_ids_and_mask(Batch(row[None]))] for row in tokens_BT]
        features = [f_1F[0][k_1F[0]].tolist() for ((f_1F, k_1F),) in kept]
    width = tiny.VOCAB + spec.n_hashed
    if spec.tf_idf:
        x = classifiers.tf_idf(features, features, width)
    elif spec.log_ratios:
        x = np.array([[float(f in text) for f in range(width)] for text in features])
    else:
        table = np.eye(width) if body.embedding is None else array(body.embedding.weight)
        dense = [(array(layer.weight), array(layer.bias)) for layer in body.dense]
        x = np.array([classifiers.deep_average(text, table, dense, spec.activation) for text in features])
    w = array(model.head.weight)
    if isinstance(model.head, NaiveBayesScaledHead):
        w = w * array(model.head.ratios_CF)
    scores = x @ w.T + array(model.head.bias)
    wanted = np.pad(scores, ((0, 0), (1, 0))) if len(w) == 1 else scores  # a single score stands beside 0
    assert_same(model.run_head(Batch(tokens_BT)).scores, wanted, rtol=1e-4, atol=1e-5)


def compare_ngram(spec: NGram) -> None:
    documents, text = some_documents(), [1, 4, 4, 4, 3]
    found = log_p(counted(documents, spec.order, smoothing=spec.smoothing, k=spec.k), text)
    plain = ngram.KneserNey(spec.order, documents, tiny.VOCAB)
    added = spec.k if spec.smoothing == "add-k" else 0.0
    for t, row in enumerate(found.exp().tolist()):
        for token, p in enumerate(row):
            wanted = plain.probability(text[: t + 1], token)
            if spec.smoothing != "kneser-ney":
                wanted = ngram.relative_frequency(spec.order, documents, tiny.VOCAB, text[: t + 1], token, added)
            assert p == pytest.approx(wanted, rel=1e-9, abs=1e-12)


def compare_word_vectors(recipe: Recipe) -> None:
    """The loss on the pairs that the objective cuts from a text, in closed form; or the factors of counts."""
    size = len(COUNTS)
    if isinstance(recipe.model, Ppmi):
        window = recipe.model.window
        model = counted_pairs(TEXT, window)
        u, s, v = np.linalg.svd(vectors.ppmi(vectors.cooccurrences(TEXT, WORDS, window, by_distance=False), size))
        assert_same(model.words_VD @ model.contexts_VD.T, (u[:, :6] * s[:6]) @ v[:6], rtol=1e-7, atol=1e-5)
        return
    spec: Any = recipe.objective
    vocabulary = VocabularyInfo(size, 0, 1, 2, 4, 5, 6, (1,), (), frozenset(range(7)), COUNTS)
    objective = build_objective(recipe, vocabulary)
    built: Any = randomised(build(recipe.model, size))
    v, u = array(built.centres.weight), array(built.neighbours.weight)
    rng = np.random.default_rng(0)
    if spec.kind == "glove":
        pairs = [(7, 8, 0.5), (9, 7, 250.0), (12, 9, 3.0)]
        words, contexts, counts = (np.array(column) for column in zip(*pairs, strict=True))
        batch = objective.collate([Example(words, rng, second=contexts, label=counts)])
        biases = array(built.centre_bias_V), array(built.neighbour_bias_V)
        wanted = vectors.glove(v, u, *biases, pairs, spec.x_max, spec.power)
    else:
        batch = objective.collate([Example(np.array([token for row in TEXT for token in row]), rng)])
        assert batch.targets_BT is not None
        assert batch.negatives_BK is not None
        rows = zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), batch.negatives_BK.tolist(), strict=True)
        if spec.kind == "cbow":
            assert batch.keep_BT is not None
            kept = [row[keep].tolist() for row, keep in zip(batch.tokens_BT, batch.keep_BT, strict=True)]
            windows = zip(batch.targets_BT[:, 0].tolist(), kept, batch.negatives_BK.tolist(), strict=True)
            wanted = vectors.cbow(v, u, [window for window in windows if window[1]])
        else:
            triples = [(c, o, noise) for (c,), near, noise in rows for o in near if o != IGNORE]
            assert all(o not in noise for _, o, noise in triples) or not spec.apart
            wanted, by_v, by_u = skipgram.negative_sampling(v, u, triples)
            objective.loss(built, batch).total.backward()  # type: ignore[no-untyped-call]
            assert_same(built.centres.weight.grad, by_v, rtol=1e-5, atol=1e-7)
            assert_same(built.neighbours.weight.grad, by_u, rtol=1e-5, atol=1e-7)
    assert float(objective.loss(built, batch).total.detach()) == pytest.approx(wanted, rel=1e-5)


def compare_head(model: LanguageModelWithTaskHead, recipe: Recipe) -> None:
    """W h + b of a pooled state, or of each one; or W tanh(V h + c) + b of a pooled one (Devlin et al. 2019)."""
    tokens_T = tiny.tokens(5)
    read: list[Any] = states(model, recipe, tokens_T)
    if isinstance(model, TokenHeadModel):
        found = TokenHeadModel.run_head(model, Batch(tokens_T[None])).scores[0]
    else:
        assert isinstance(model, Classifier)
        assert model.pool is not None
        found = model.run_head(Batch(tokens_T[None])).scores
        read = {"first": read[:1], "last": read[-1:], "mean": [sum(read) / len(read)]}[model.pool.kind]
        if model.dense is not None:
            assert model.activation == "tanh"
            read = [np.tanh(array(model.dense.weight) @ h + array(model.dense.bias)) for h in read]
    bias = 0.0 if model.head.bias is None else array(model.head.bias)
    assert_same(found, [array(model.head.weight) @ h + bias for h in read], rtol=1e-4, atol=1e-4)


def compare(recipe: Recipe) -> None:
    """A small model of a recipe with the plain one."""
    torch.manual_seed(0)
    spec = recipe.model
    if isinstance(spec, NGram):
        compare_ngram(spec)
        return
    if not isinstance(spec, Transformer | Recurrent | Averaging):
        compare_word_vectors(recipe)
        return
    body = build(spec, tiny.VOCAB)
    model = drawn(body if recipe.objective.kind == "replaced-tokens" else add_objective_head(recipe, body))
    match spec:
        case Transformer():
            compare_transformer(of_body(model), spec)
        case Recurrent():
            compare_recurrent(of_body(model), spec)
        case Averaging():
            compare_averaging(model, recipe)
    if isinstance(model, Classifier | TokenHeadModel) and not isinstance(spec, Averaging):
        compare_head(model, recipe)


@pytest.mark.parametrize("topic", TRAININGS)
def test_a_model_is_that_of_its_formula(topic: str) -> None:
    recipes = [training.small() for training in TRAININGS[topic]]
    for recipe in {repr((recipe.model, recipe.objective)): recipe for recipe in recipes}.values():
        compare(recipe)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_what_its_settings_give(form: str) -> None:
    name, *settings = FORMS[form]
    words = ["lmtool", "pretrain", *(word for setting in settings for word in ("-s", setting))]
    compare(Training(words, name, None).small())


def test_topics_that_train_are_compared() -> None:
    named = r"lmtool (?:pretrain|finetune|sweep) (?:[^;&|]|\\\n)*?(?:--recipe|-r|--from) "
    assert [topic for topic, text in TOPICS.items() if re.search(named, text)] == [t for t in TRAININGS if t in TOPICS]
    assert len(TRAININGS) > 20
