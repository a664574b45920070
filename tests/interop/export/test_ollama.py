"""Ollama's template gives the text that the chat template gives, by a plain interpreter of what it uses of Go's."""

import json
import re
from pathlib import Path

import pytest

from lmtool.errors import UsageError
from lmtool.interop.export.exporting import export_gguf_and_modelfile
from lmtool.interop.export.ollama import format_modelfile
from lmtool.tokenization.chat import TRAINED_TEMPLATE
from lmtool.tokenization.template import SandboxedTemplate
from tests.interop.runs import made, tokenizer_of
from tests.support.gguf import llama

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "[SEP]"}
CHATML = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "<|im_start|>system\nBe {{ '\"kind\"' }}.<|im_end|>\n"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set first = '<<SYS>>\n' ~ messages[0].content ~ '\n<</SYS>>\n\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ first if loop.first else '' }}{{ m.content }}"
    " [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}{% endfor %}"
)
NUMBERED = "{% for m in messages %}{{ loop.index }}. {{ m.content }}\n{% endfor %}"
REFUSING = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML
USER, ANSWER, SYSTEM = (
    {"role": "user", "content": "q{{"},
    {"role": "assistant", "content": "a\n"},
    {"role": "system", "content": "s"},
)
CONVERSATIONS = [[USER], [SYSTEM, USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER, ANSWER, USER]]


def in_ollama(template: str, messages: list[dict[str, str]]) -> str:
    """What the template writes: actions one after the other, and the conditions that they stand below."""
    template = re.sub(r"\s*\{\{-", "{{", template)
    actions = re.findall(r"\{\{ *(.*?) *\}\}(?=\{\{|$|\")", template)
    assert actions[:2] == ["range $i, $_ := .Messages", "$more := gt (len (slice $.Messages $i)) 1"]
    assert actions[-1] == "end"
    text = ""
    for i, message in enumerate(messages):
        known = {
            **{f'eq .Role "{role}"': message["role"] == role for role in ("system", "user")},
            "eq $i 0": i == 0,
            "$more": len(messages[i:]) > 1,
        }
        below: list[tuple[bool, bool]] = []  # of each condition: whether it holds, and whether one of its kind did
        for action in actions[2:-1]:
            if action.startswith("if "):
                below.append((known[action[3:]],) * 2)
            elif action.startswith("else"):
                _, was = below.pop()
                holds = not was and (action == "else" or known[action[8:]])
                below.append((holds, was or holds))
            elif action == "end":
                below.pop()
            elif all(holds for holds, _ in below):
                text += message["content"] if action == ".Content" else json.loads(action)
        assert not below
    return text


@pytest.mark.parametrize("chat", [CHATML, LLAMA2, "{{ bos_token }}" + CHATML, TRAINED_TEMPLATE])
@pytest.mark.parametrize("begins", ["<s>", ""])
def test_ollamas_template_writes_what_the_chat_template_writes(chat: str, begins: str) -> None:
    written = format_modelfile("model.gguf", chat, TOKENS, begins, ["</s>"])
    assert written.startswith("FROM ./model.gguf\n")
    assert written.endswith('\nPARAMETER stop "</s>"\n')
    template = written.split('"""')[1]
    for messages in CONVERSATIONS:
        wanted = SandboxedTemplate(chat).render(
            messages=messages, add_generation_prompt=True, tools=None, documents=None, marks=(), **TOKENS
        )
        assert in_ollama(template, messages) == wanted.removeprefix(begins)


@pytest.mark.parametrize("chat", [NUMBERED, REFUSING, "{% broken"])
def test_what_cannot_be_expressed_is_said(chat: str) -> None:
    written = format_modelfile("model.gguf", chat, TOKENS, "", [])
    assert "TEMPLATE" not in written
    assert "# its chat template cannot be written" in written


def test_a_model_without_conversations_gets_its_prompt_as_it_is() -> None:
    assert format_modelfile("m.gguf", None, {}, "", []) == 'FROM ./m.gguf\nTEMPLATE """{{ .Prompt }}"""\n'


def test_it_lies_beside_the_gguf_file(tmp_path: Path) -> None:
    run = made(tmp_path / "run", llama(), tokenizer_of(), std=0.1)
    export_gguf_and_modelfile(str(run), tmp_path / "model.q8.gguf", "q8_0")
    written = (tmp_path / "model.q8.Modelfile").read_text()
    assert written.startswith("FROM ./model.q8.gguf\nTEMPLATE")
    assert "PARAMETER stop" in written
    (tmp_path / "model.q8.gguf").unlink()
    with pytest.raises(UsageError, match="exists already"):
        export_gguf_and_modelfile(str(run), tmp_path / "model.q8.gguf", "q8_0")
    export_gguf_and_modelfile(str(run), tmp_path / "odd.Modelfile", "q8_0")
    assert (tmp_path / "odd.Modelfile").read_bytes()[:4] == b"GGUF"
    assert (tmp_path / "odd.Modelfile.Modelfile").read_text().startswith("FROM ./odd.Modelfile\n")
