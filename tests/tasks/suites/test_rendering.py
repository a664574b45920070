"""Suites that come with lmtool are read, and their templates fit rows as they are published; mistakes are named."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from lmtool.data.table import open_table
from lmtool.errors import DataError, RecipeError, UsageError
from lmtool.tasks.suites.rendering import Rendering, TaskItem, joined
from lmtool.tasks.suites.spec import ChoiceTask, ContinuationTask, PromptedTask, read_suite, shipped

ARC = {"question": "Why?", "choices": {"text": ["A", "B b", "C"], "label": ["1", "2", "3"]}, "answerKey": "2"}
SENTENCES = {"sentence1": "One.", "sentence2": "Two."}
PAIR = {"premise": "It rains.", "hypothesis": "It is wet"}
ROWS: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "standard.hellaswag": (
        {
            "activity_label": "Cooking",
            "ctx_a": "A man cooks.",
            "ctx_b": "he",
            "endings": ["eats.", "runs."],
            "label": "1",
        },
        ("Cooking: A man cooks. He", "runs."),
    ),
    "standard.piqa": (
        {"goal": "Open it", "sol1": "pull", "sol2": "push", "label": "0"},
        ("Question: Open it\nAnswer:", "pull"),
    ),
    "standard.arc-easy": (ARC, ("Question: Why?\nAnswer:", "B b")),
    "standard.arc-challenge": (ARC, ("Question: Why?\nAnswer:", "B b")),
    "standard.winogrande": (
        {"sentence": "Ida thanked Ben, since _ had helped.", "option1": "Ida", "option2": "Ben", "answer": "2"},
        ("Ida thanked Ben, since Ben", "had helped."),
    ),
    "standard.lambada": ({"text": "He went to the sea"}, ("He went to the", "sea")),
    "glue.cola": (
        {"sentence": "It is.", "label": "acceptable"},
        ("It is.\nQuestion: Does this sentence make sense?\nAnswer:", "yes"),
    ),
    "glue.sst-2": (
        {"sentence": "Fine.", "label": "positive"},
        ("Fine.\nQuestion: Is this sentence positive or negative?\nAnswer:", "positive"),
    ),
    "glue.mrpc": ({**SENTENCES, "label": "equivalent"}, ("", "yes")),
    "glue.qqp": ({"question1": "Who?", "question2": "What?", "label": "not_duplicate"}, ("", "no")),
    "glue.mnli": ({**PAIR, "label": "neutral"}, ("", "Neither")),
    "glue.qnli": ({"question": "Who?", "sentence": "Ida.", "label": "entailment"}, ("", "yes")),
    "glue.rte": ({**SENTENCES, "label": "not_entailment"}, ("", "False")),
    "superglue.boolq": (
        {"passage": "It is.", "question": "is it", "label": "True"},
        ("It is.\nQuestion: is it?\nAnswer:", "yes"),
    ),
    "superglue.cb": ({**PAIR, "label": "contradiction"}, ("", "False")),
    "superglue.copa": (
        {"premise": "It rained.", "choice1": "It was sunny.", "choice2": "The road was wet.", "question": "effect"}
        | {"label": "choice2"},
        ("It rained therefore", "the road was wet."),
    ),
    "superglue.rte": ({**PAIR, "label": "entailment"}, ("", "True")),
    "superglue.wic": ({**SENTENCES, "word": "bank", "label": "False"}, ("", "no")),
}
BIGBENCH = {"context": "op 2 =", "answers": ["3", "4"], "choices": ["4", "3"]}
ROWS |= {f"bigbench.{name}": (BIGBENCH, ("op 2 =", "3")) for name in read_suite("bigbench")}


def rendering(folder: Path, task: PromptedTask, rows: list[dict[str, Any]], **changes: Any) -> Rendering:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Rendering("task", task.with_values(changes), open_table(str(path)))


def items(one: Rendering) -> list[TaskItem]:
    return [one.item(one.table, row) for row in one.table.rows()]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ROWS)
def test_published_rows_fit_the_suites_that_come_with_lmtool(name: str, tmp_path: Path) -> None:
    suite, _, title = name.partition(".")
    row, (context, right) = ROWS[name]
    task = read_suite(suite)[title]
    assert isinstance(task, PromptedTask)
    (item,) = items(rendering(tmp_path, task, [row]))
    assert item.pairs[item.right][1] == right
    assert item.pairs[item.right][0] == context or not context


def test_every_shipped_task_is_tested_above_or_bundled() -> None:
    assert {f"{suite}.{name}" for suite in shipped() if suite != "bundled" for name in read_suite(suite)} == ROWS.keys()


SUMS = ChoiceTask(kind="choice", table="-", prompt="{{ a }} +", choices=("x {{ b }}", "y"), answer="{{ c }}")


def test_examples_are_those_of_nanochat(tmp_path: Path) -> None:
    """Drawn by Random(1234 + number of the row) from the list of all others."""
    rows = [{"a": str(i), "b": f"b{i}", "c": str(i % 2)} for i in range(30)]
    one = rendering(tmp_path, SUMS, rows, shots=4)
    texts = [f"{i} + {'y' if i % 2 else f'x b{i}'}" for i in range(30)]
    for number in range(30):
        others = [i for i in range(30) if i != number]
        drawn = random.Random(1234 + number).sample(others, 4)
        assert one.before(number) == "".join(texts[i] + "\n\n" for i in drawn)


def test_an_answer_is_a_text_or_a_number(tmp_path: Path) -> None:
    rows = [{"a": "1", "b": "b", "c": c} for c in ("x b", "1", "y")]
    assert [item.right for item in items(rendering(tmp_path, SUMS, rows))] == [0, 1, 1]
    with pytest.raises(DataError, match=r"the answer '2' is none of 'x b', 'y'"):
        items(rendering(tmp_path, SUMS, [{"a": "1", "b": "b", "c": "2"}]))


def test_templates_that_do_not_fit_are_named(tmp_path: Path) -> None:
    rows = [{"a": "1", "b": "b", "c": "0"}]
    with pytest.raises(UsageError, match="names 'd', which is not a column"):
        items(rendering(tmp_path, SUMS, rows, prompt="{{ d }}"))
    with pytest.raises(UsageError, match="not a template"):
        items(rendering(tmp_path, SUMS, rows, prompt="{{ a"))
    with pytest.raises(DataError, match=r"task.prompt fails"):
        items(rendering(tmp_path, SUMS, rows, prompt="{{ a.b.c }}"))
    with pytest.raises(UsageError, match="1 row is too few for 1 example"):
        rendering(tmp_path, SUMS, rows, shots=1).before(0)


def test_mistakes_of_a_suite_are_told_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "suite.yaml"
    path.write_text(
        "one:\n  kind: choice\n  table: a.csv\n  prompts: x\n  choices: [a, b]\n  answer: 3\n"
        "two:\n  kind: chose\nthree:\n  kind: match\n  table: x\n  prompt: x\n  answers: x\n  pattern: '('\n"
    )
    with pytest.raises(RecipeError) as refused:
        read_suite(str(path))
    assert [line.partition("suite.yaml:")[2][:40] for line in refused.value.mistakes] == [
        "4: one.prompts: unknown key; did you mean"[:40],
        "6: one.answer: 3 is not text",
        "8: two.kind: 'chose' is not choice, schem"[:40],
        "14: three.pattern: is not a regular expressi"[:40],
    ]
    with pytest.raises(UsageError, match="there is no suite"):
        read_suite("bundlde")


def test_a_template_keeps_its_lines(tmp_path: Path) -> None:
    """As in lm-eval, unlike in chat templates: the line after a block, and the empty one at the end."""
    (tmp_path / "t.csv").write_text("text,label\none,two\n")
    values = {"prompt": "{% if text %}\n{{ text }}{% endif %}\n\n", "description": "Say it.\n\n", "begins": True}
    task = ContinuationTask(kind="continuation", table="t.csv", continuation="{{ label }}", **values)
    rendering = Rendering("t", task, open_table(str(tmp_path / "t.csv")))
    (row,) = rendering.table.rows()
    assert rendering.item(rendering.table, row).after(rendering.before(0)).pairs == [("Say it.\n\n\none\n\n", "two")]


def test_a_space_stands_before_a_continuation_unless_there_is_one() -> None:
    assert joined("a:", "b") == joined("a: ", "b") == "a: b"
    assert joined("a:\n", "b") == "a:\nb"
