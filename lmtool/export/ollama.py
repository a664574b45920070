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
    template = "{{ .Prompt }}" if prompting.chat is None else _in_go(prompting.chat, prompting)
    lines = [f"FROM ./{name}"]
    if template is None:
        lines.append("# its chat template cannot be written in Ollama's language: turns depend on more than their role")
    else:
        lines.append(f'TEMPLATE """{template}"""')
    return "\n".join(
        [*lines, *(f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in prompting.stops), ""]
    )


def _in_go(chat: str, prompting: OllamaPrompt) -> str | None:
    """The template for Ollama, by what stands between the texts of conversations; None where that differs."""

    def between(*roles: str) -> list[str]:
        template = SandboxedTemplate(chat)
        texts = [f"zq{i}zq" for i in range(len(roles))]
        messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]
        others = {"tools": None, "documents": None, "marks": ()}
        written = template.render(messages=messages, add_generation_prompt=True, **others, **prompting.tokens)
        return re.split("|".join(texts), written)

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
    quoted = {name: json.dumps(text, ensure_ascii=False) for name, text in pieces.items()}
    return re.sub(r"\{\{ ([A-Z_]+) \}\}", lambda m: f"{{{{ {quoted[m[1]]} }}}}" if pieces[m[1]] else "", _TURNS)
