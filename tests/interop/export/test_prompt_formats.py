"""The prompt format of runs that answer goes with them, into GGUF files and directories for Transformers, and back."""

from pathlib import Path
from typing import Any

import jinja2
import pytest
import transformers

from lmtool.compute.device import CPU
from lmtool.errors import UsageError
from lmtool.generation.chat import choose_chat_or_plain_format
from lmtool.interop.export.exporting import export, export_gguf_and_modelfile
from lmtool.interop.gguf.container import GgufContainer
from lmtool.interop.importing import import_to_cache
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.load import LoadedModel, load_run
from lmtool.tasks.predict import build_task_with_saved_calibration
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.schema import Columns
from lmtool.tokenization.chat import Message
from tests.interop.runs import SMALL, made, recipe_of, tokenizer_of
from tests.support.peers import BEGUN, byte_level, peer, peer_in

OWN = {
    **SMALL,
    "context": 64,
    "activation": "swiglu",
    "norm": {"kind": "rms"},
    "position": {"kind": "rotary"},
    "bias": False,
}
PAIRS = {"source_column": "question", "target_column": "answer"}
MESSAGES = {"messages_column": "messages"}
CHATML = (
    "{% for message in messages %}<|start|>{{ message.role }}: {{ message.content }}<|stop|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant: {% endif %}"
)
SPECIALS = ["<s>", "</s>", "<pad>", "<|start|>", "<|stop|>"]
CASES = [
    # how the tokenizer frames a text, or None for a model of ours; the chat template; the table
    (None, "", PAIRS),
    (None, "", MESSAGES),
    (BEGUN, CHATML, PAIRS),
    (BEGUN, "", MESSAGES),
    ("", "", PAIRS),
    ("", CHATML, MESSAGES),
]
TEXTS = ["They waited", "", "  the rain <|stop|> [SEP] </s> walks ", "¿Qué? 漢字"]
TURNS = [("user", "They waited"), ("assistant", "for the rain"), ("user", "and then?"), ("assistant", "they walked")]


def answering(folder: Path, framed: Any, template: str, data: dict[str, Any]) -> Path:
    """A run that answers, fine-tuned from a published model or not."""
    objective = {"kind": "seq2seq"}
    if framed is None:
        return made(folder / "run", recipe_of(OWN, objective, data=data), tokenizer_of())
    architecture, config, _, roles = peer("llama")
    peer_in(folder / "published", (architecture, config, byte_level(SPECIALS, framed or None), roles))
    if template:
        (folder / "published" / "chat_template.jinja").write_text(template)
    base = load_run(str(import_to_cache(str(folder / "published"))), CPU)
    values = {"model": base.recipe.model.model_dump(), "objective": objective, "data": data}
    recipe = Recipe.model_validate({**values, "training": {"steps": 1, "batch_size": 2}})
    return made(folder / "run", recipe, base.tokenizer)


def rows(loaded: LoadedModel) -> list[tuple[list[int], list[int] | None]]:
    """Rows of a table, as training and evaluation read them."""
    turns = tuple(Message(role=role, content=text) for role, text in TURNS)
    if loaded.recipe.data.messages_column:
        columns, items = Columns((), messages="messages"), [LabelledRow(("",), None, None, 1, messages=turns)]
    else:
        columns = Columns(("question",), target="answer")
        items = [LabelledRow((text,), None, "for the rain", i) for i, text in enumerate(TEXTS)]
    made = build_task_with_saved_calibration(loaded, "", columns, ()).encode(items)
    return [(row.tokens.tolist(), None if row.target is None else row.target.tolist()) for row in made]


def conversation(loaded: LoadedModel) -> list[int] | str:
    """What `chat` reads, or why it refuses."""
    try:
        return choose_chat_or_plain_format(loaded).encode_prompt(
            [Message(role=role, content=text) for role, text in TURNS[:3]]
        )
    except UsageError as refusal:
        return refusal.what


@pytest.mark.parametrize(("framed", "template", "data"), CASES)
def test_prompts_are_read_back(framed: Any, template: str, data: dict[str, Any], tmp_path: Path) -> None:
    """And other programs read the same by the template alone, which llama.cpp gives no tokens but bos_token and
    eos_token; they end at the same ids."""
    run, out, file = answering(tmp_path, framed, template, data), tmp_path / "out", tmp_path / "out.gguf"
    export_gguf_and_modelfile(str(run), file, "f16")
    export(str(run), out)
    loaded = load_run(str(run), CPU)
    for again in (load_run(str(import_to_cache(str(path))), CPU) for path in (out, file)):
        assert again.recipe.objective.kind == "seq2seq"
        kept = [{**one.recipe.data.model_dump(), "split": "auto"} for one in (again, loaded)]
        assert kept[0] == kept[1]
        for text in TEXTS:
            assert again.prompt_format.make_prompt(text, "for") == loaded.prompt_format.make_prompt(text, "for")
        assert again.prompt_format.end_ids == loaded.prompt_format.end_ids
        assert rows(again) == rows(loaded)
        assert conversation(again) == conversation(loaded)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    wanted = list(loaded.prompt_format.make_prompt("They waited").tokens)
    messages = [{"role": "user", "content": "They waited"}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] == wanted
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    source = environment.from_string(GgufContainer(file).values["tokenizer.chat_template"])
    tokens = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    text = source.render(messages=messages, add_generation_prompt=True, **tokens)
    assert tokenizer.encode(text, add_special_tokens=False) == wanted
    ends = transformers.GenerationConfig.from_pretrained(out).eos_token_id
    assert ({ends} if isinstance(ends, int) else {*ends}) == loaded.prompt_format.end_ids
