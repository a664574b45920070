"""How Ollama prompts a GGUF file: a Modelfile, whose template in Go is read off a chat template in Jinja."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmtool.tokenization.template import SandboxedTemplate

MODELFILE = ".Modelfile"
"""How its name ends."""

_TURNS = """\
{{- range $i, $_ := .Messages }}{{ $more := gt (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "system" }}{{ OPENING }}{{ .Content }}{{ AFTER_SYSTEM }}
{{- else if eq .Role "user" }}{{ if eq $i 0 }}{{ ALONE }}{{ end }}{{ .Content }}
{{- if $more }}{{ AFTER_USER }}{{ else }}{{ ASKING }}{{ end }}
{{- else }}{{ .Content }}{{ if $more }}{{ AFTER_ANSWER }}{{ end }}
{{- end }}
{{- end }}"""
"""Each message with what stands between it and the next; behind the user's last, what an answer begins with."""


@dataclass(frozen=True)
class OllamaPrompt:
    """How a model is prompted.

    chat: the chat template; None where the prompt is taken as it is.
    tokens: the variables of the template.
    begins: what the tokenizer puts before every text.
    stops: tokens that end an answer.
    """

    chat: str | None
    tokens: Mapping[str, str]
    begins: str
    stops: Sequence[str]


def beside_gguf(file: Path) -> Path:
    """Where the Modelfile of a GGUF file lies."""
    return file.with_name(file.name.removesuffix(".gguf") + MODELFILE)


def modelfile(name: str, prompting: OllamaPrompt) -> str:
    """The Modelfile of a GGUF file of this name beside it.

    Where turns depend on more than their role and place, Ollama is left to find a template, as a comment says.
    """
    written = "{{ .Prompt }}" if prompting.chat is None else _in_go(prompting.chat, prompting)
    template = f'TEMPLATE """{written}"""'
    if written is None:
        template = "# its chat template cannot be written in Ollama's language: turns depend on more than their role"
    stops = [f"PARAMETER stop {_quoted(stop)}" for stop in prompting.stops]
    return "\n".join([f"FROM ./{name}", template, *stops, ""])


def _in_go(chat: str, prompting: OllamaPrompt) -> str | None:
    """The template for Ollama, by what stands between the texts of conversations; None where that differs."""

    def between(*roles: str) -> list[str]:
        template = SandboxedTemplate(chat)
        messages = [{"role": role, "content": f"zq{i}zq"} for i, role in enumerate(roles)]
        others = {"tools": None, "documents": None, "marks": ()}
        written = template.render(messages=messages, add_generation_prompt=True, **others, **prompting.tokens)
        return re.split(r"zq\d+zq", written)

    turns = ("user", "assistant") * 2
    try:
        opening, after_system, after_user, after_answer, *more = between("system", *turns, "user")
        alone, *rest = between(*turns, "user")
    except Exception:  # as templates may refuse roles, and fail in their own ways
        return None
    *regular, asking = more
    if regular != [after_user, after_answer] or rest != [*regular, *more]:
        return None
    opening, alone = (text.removeprefix(prompting.begins) for text in (opening, alone))
    pieces = {"OPENING": opening, "AFTER_SYSTEM": after_system, "ALONE": alone}
    pieces |= {"AFTER_USER": after_user, "ASKING": asking, "AFTER_ANSWER": after_answer}
    actions = {name: f"{{{{ {_quoted(text)} }}}}" if text else "" for name, text in pieces.items()}
    return re.sub(r"\{\{ ([A-Z_]+) \}\}", lambda match: actions[match[1]], _TURNS)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
