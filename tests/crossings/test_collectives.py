"""Every process enters every collective as often as all others, in the same order, whatever its rows.

Rows are of very unequal length, so that shares of a batch are as well. Threads stand for processes; see
`tests.compute.together`. What they learn and measure is what one process does.
"""

import itertools
import json
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from lmtool.compute.processes import World
from lmtool.data import streaming
from lmtool.evaluation.embedding import embed
from lmtool.evaluation.perplexity import measure_perplexity
from lmtool.runs import load
from lmtool.runs.load import load_run
from lmtool.tasks.predict import evaluate_tables, predict_table_lazily
from lmtool.tasks.prompting import PromptTemplate, evaluate_prompt_by_likelihood
from lmtool.training import length
from tests.compute.together import meet
from tests.support import families
from tests.support.cases import nightly_but
from tests.support.families import BERT, ELECTRA
from tests.support.training import Work, after, metrics, words

SIZE = 3
SHARED = "training.shard=full"
UNEVEN = ("training.steps=6", "training.batch_size=12", "training.micro_tokens=20", "evaluation.every=3")
"""Half of the rows of a batch may be alone in a micro-batch, or one with two others."""

ENCODER, LUONG = (f"model={{{families.TRANSFORMER}, shape: {shape}}}" for shape in ("encoder", "encoder-decoder"))
HEAD = (ENCODER, "objective.kind=classification")

TEXTS: dict[str, Sequence[str]] = families.ON_TEXT | {
    "decoder": ("evaluation.prompts=[the]", "checkpoint.background=true"),
    "muon": ("optimizer={kind: muon, lr: 0.02}",),
    "next sentences": BERT,
    "replaced tokens": ELECTRA,
    "sampled tokens": ("objective.scheduled_sampling={growth: linear, k: 0.001}",),
    "streamed": ("data.stream=true",),
    "a head without a loss": (BERT[0], "objective.kind=masked"),
    "gradual": ("tuning.unfreeze_every=2",),
}
TABLES: dict[str, Sequence[str]] = families.ON_TABLES | {
    "numbers": (*HEAD, "objective.task=number"),
    "several labels": (*HEAD, "objective.task=multi"),
    "tags": (ENCODER, "objective.kind=tagging"),
    "tags of a crf": (ENCODER, "objective={kind: tagging, crf: true}"),
    "questions": (ENCODER, "objective.kind=question-answering"),
    "answers of an encoder-decoder": (LUONG, "objective.kind=seq2seq"),
}


def cases(recipes: dict[str, Sequence[str]], *daily: str) -> list[ParameterSet]:
    """Each where processes have a model each, and where they share one, which Transformers can."""
    found = []
    for name, overrides in recipes.items():
        can_share = all("kind: transformer" in part for part in overrides if part.startswith("model="))
        found.append(pytest.param(name, (), id=f"{name}, replicated"))
        found += [pytest.param(name, (SHARED,), id=f"{name}, shared")] * can_share
    return nightly_but(found, *daily)


def still(overrides: Sequence[str]) -> list[str]:
    """The same without dropout, which is another in each process."""
    dropped = [part.replace("dropout: 0.1", "dropout: 0").replace("dropout=0.1", "dropout=0") for part in overrides]
    return [*dropped, *UNEVEN, *(["model.dropout=0"] if "model=" not in "".join(overrides) else [])]


def texts(n: int) -> list[str]:
    """Texts of one word, of some, and of more than a context has."""
    return [words((1, 2, 5, 1, 14, 3)[i % 6], i) for i in range(n)]


def table(work: Work, name: str, n: int = 40) -> Path:
    """A table that suits a recipe of TABLES."""
    kind, path = "".join(TABLES[name]), work.folder / f"{name}.jsonl"
    labels: dict[str, Sequence[Any]] = {"numbers": range(5), "several labels": ("a;b", "b", ";")}
    with path.open("w", encoding="utf-8") as file:
        for i, text in enumerate(texts(n)):
            tokens, several = text.split(), labels.get(name, "ab")
            row: dict[str, Any] = {"text": text, "label": several[i % len(several)]}
            if "tagging" in kind:
                row = {"tokens": tokens, "tags": [word[:1] for word in tokens]}
            elif "question-answering" in kind:
                row = {"question": "who", "context": text, "answers": {"text": tokens[:1], "answer_start": [0]}}
            elif "seq2seq" in kind:
                row = {"source": text, "target": words(1 + i % 3, i)}
            print(json.dumps(row), file=file)
    return path


def near(found: Any) -> Any:
    """The same values; numbers that are not whole up to rounding."""
    match found:
        case dict():
            return {key: near(value) for key, value in found.items()}
        case list():
            return [near(value) for value in found]
        case tuple():
            return tuple(near(value) for value in found)
        case float():
            return pytest.approx(found, rel=1e-3, abs=1e-4)
    return found


def learns_alike(work: Work, patch: pytest.MonkeyPatch, learn: Any) -> list[Hashable]:
    """Assert that several processes learn and measure what one does; returns the collectives that they entered.

    learn: called with the name of a run and further overrides.
    """
    learn(name="one")
    _, entered = meet(patch, SIZE, lambda _: learn(name="many"))
    found, expected = metrics(work.run("many")), metrics(work.run("one"))
    assert [record["step"] for record in found] == [record["step"] for record in expected]
    for key in ("loss", "valid_loss"):
        assert [record[key] for record in found] == near([record[key] for record in expected]), key
    return entered


@pytest.mark.parametrize(("name", "shared"), cases(TEXTS, "skip-gram, replicated", "3-gram, replicated"))
def test_processes_learn_from_text_what_one_does(
    work: Work, monkeypatch: pytest.MonkeyPatch, name: str, shared: Sequence[str]
) -> None:
    monkeypatch.setattr(streaming, "UNIT_BYTES", 300)
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 1500)
    work.text.write_text("\n\n".join(texts(120)), encoding="utf-8")
    overrides = still(TEXTS[name])

    def learn(*, name: str) -> None:
        work.pretrain(*overrides, *(shared if name == "many" else ()), name=name)

    assert len(learns_alike(work, monkeypatch, learn)) > 6


@pytest.mark.parametrize(("name", "shared"), cases(TABLES, "tags, shared"))
def test_processes_learn_from_tables_what_one_does(
    work: Work, monkeypatch: pytest.MonkeyPatch, name: str, shared: Sequence[str]
) -> None:
    """Then their validation rows are fewer than the processes, and rows are answered that are fewer, too."""
    rows = table(work, name)
    heads = [] if "seq2seq" in "".join(TABLES[name]) else ["objective.dropout=0"]
    overrides = [*still(TABLES[name]), *heads, "data.valid_fraction=0.05"]

    def learn(*, name: str) -> None:
        work.learn_table(work.recipe, rows, *overrides, *(shared if name == "many" else ()), name=name)

    learns_alike(work, monkeypatch, learn)
    loaded = load_run(str(work.run("one")))
    for n in (1, 2, 7):
        few = table(work, name, n)
        alone = [cells for _, cells in predict_table_lazily(loaded, str(few)).rows]
        (measured,) = evaluate_tables(loaded, [str(few)])

        def answer(_: World, few: Path = few) -> tuple[list[Any], float]:
            cells = [cells for _, cells in predict_table_lazily(loaded, str(few)).rows]
            (results,) = evaluate_tables(loaded, [str(few)])
            return cells, results.loss

        for found, loss in meet(monkeypatch, SIZE, answer)[0]:
            assert [row[0] for row in found] == near([row[0] for row in alone])
            assert loss == near(measured.loss)


@pytest.mark.parametrize("tunes", [False, True], ids=["distil", "tune adapters"])
@pytest.mark.parametrize("shared", [(), (SHARED,)], ids=["replicated", "shared"])
def test_processes_learn_from_another_run_what_one_does(
    work: Work, monkeypatch: pytest.MonkeyPatch, shared: Sequence[str], tunes: bool
) -> None:
    overrides = still(())
    work.pretrain("model.dropout=0", "training.steps=1", name="base")
    rows = table(work, "classes of an encoder")

    def learn(*, name: str) -> None:
        given = (*overrides, *(shared if name == "many" else ()))
        if tunes:
            adapters = ("objective.dropout=0", "tuning.lora={rank: 2, dropout: 0}")
            work.finetune(*given, *adapters, source=work.run("base"), table=rows, name=name)
        else:
            work.pretrain(*given, "distillation.cosine=0.1", name=name, teacher=work.run("base"))

    learns_alike(work, monkeypatch, learn)


def test_processes_whose_clocks_differ_take_as_many_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process has a clock of its own, by which the rest of its time is short or long, and all do as much."""
    monkeypatch.setattr(length, "MAX_PROBE_SECONDS", 0.0)
    clocks, genuine = itertools.cycle((1.0, 100.0)), length.RunLengthController._estimate_durations_from_steps

    def measure(controller: Any, steps: Any, *others: Any) -> Any:
        return genuine(controller, [replace(step, seconds=next(clocks) * step.seconds) for step in steps], *others)

    monkeypatch.setattr(length.RunLengthController, "_estimate_durations_from_steps", measure)
    overrides = ("model.dropout=0", "training.minutes=0.01", "training.batch_size=12")
    meet(monkeypatch, SIZE, lambda _: work.pretrain(*overrides))


def test_a_signal_to_one_process_stops_all_and_all_resume(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*still(TEXTS["decoder"]), SHARED]
    work.pretrain(*overrides, name="one", stop=after(4))

    def interrupted(world: World) -> None:
        work.pretrain(*overrides, name="many", stop=after(4) if world.rank == 1 else lambda: False)

    meet(monkeypatch, SIZE, interrupted)
    assert metrics(work.run("many"))[-1]["step"] == 4
    work.resume(name="one")
    meet(monkeypatch, SIZE, lambda _: work.resume(name="many"))
    for key in ("loss", "valid_loss"):
        found, expected = ([record[key] for record in metrics(work.run(name))] for name in ("many", "one"))
        assert found == near(expected)
    meet(monkeypatch, SIZE, lambda _: work.resume(name="many"))  # it is over


ASKED: dict[str, Sequence[str]] = {
    "decoder": (),
    "recurrent": ("model={kind: recurrent, d_model: 12, context: 16}",),
    "masked": (ENCODER, "objective.kind=masked"),
    **{name: families.ON_TEXT[name] for name in ("prefix", "3-gram")},
}


@pytest.mark.parametrize(
    ("name", "lines"), [*((name, 2) for name in ASKED), *((name, n) for name in ("decoder", "3-gram") for n in (1, 5))]
)
def test_processes_measure_and_embed_texts_as_one_does(
    work: Work, monkeypatch: pytest.MonkeyPatch, name: str, lines: int
) -> None:
    """Of one document, of fewer than there are processes, and of some; also where processes share the model."""
    work.pretrain(*still(ASKED[name]), "training.steps=1", "data.documents=line")
    run = str(work.run())
    text = work.folder / "few.txt"
    text.write_text("".join(f"{line} a\n" for line in texts(lines)), encoding="utf-8")

    def measured(_: World) -> dict[str, object]:
        return measure_perplexity(run, [str(text)], device="cpu").to_record()

    def embedded(_: World) -> list[list[float]]:
        found = embed(load_run(run), iter(texts(lines)), -1, "mean", truncate=True)
        return [one.vectors[0].tolist() for one in found]

    reads = [*([] if name == "3-gram" else [embedded]), measured]
    expected = [read(World()) for read in reads]
    for memory in (None, 1):
        monkeypatch.setattr(load, "device_memory_bytes", lambda _, memory=memory: memory)
        for read, alone in zip(reads, expected, strict=True):
            found, entered = meet(monkeypatch, SIZE, read)
            assert found == [near(alone)] * SIZE
        assert (("root",) in entered) is (memory == 1 and name in ("decoder", "prefix"))


@pytest.mark.parametrize("n", [1, 7])
def test_processes_share_prompts_and_have_the_same_figures(work: Work, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Each is scored by one process, and all have the same figures."""
    work.pretrain("model.dropout=0", "model.context=64")
    loaded = load_run(str(work.run()))
    rows = table(work, "classes of an encoder", n + 1)

    def prompted(_: World) -> tuple[dict[str, Any], int]:
        tokens: list[int] = []
        prompting = PromptTemplate("{text}:", calibrate=True)
        found = evaluate_prompt_by_likelihood(
            loaded, str(rows), prompting, report=lambda _, __, total: tokens.append(total)
        )
        return found.to_record(), max(tokens, default=0)

    expected, whole = prompted(World())
    told, _ = meet(monkeypatch, SIZE, prompted)
    assert [record for record, _ in told] == [expected] * SIZE
    assert sum(tokens for _, tokens in told) == whole
