"""Modelfiles, by which Ollama prompts GGUF files: a template in Go, which is inferred from a chat template in Jinja."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lmtool.tokenization.template import SandboxedTemplate

MODELFILE_SUFFIX = ".Modelfile"

_TURNS = """\
{{- range $i, $_ := .Messages }}{{ $more := gt (len (slice $.Messages $i)) 1 }}
{{- if eq .Role "system" }}{{ OPENING }}{{ .Content }}{{ AFTER_SYSTEM }}
{{- else if eq .Role "user" }}{{ if eq $i 0 }}{{ ALONE }}{{ end }}{{ .Content }}
{{- if $more }}{{ AFTER_USER }}{{ else }}{{ ASKING }}{{ end }}
{{- else }}{{ .Content }}{{ if $more }}{{ AFTER_ANSWER }}{{ end }}
{{- end }}
{{- end }}"""
"""Each message with what stands between it and the next; behind the user's last, what an answer begins with."""


def modelfile_path(gguf_file: Path) -> Path:
    """The path of the Modelfile beside a GGUF file."""
    return gguf_file.with_name(gguf_file.name.removesuffix(".gguf") + MODELFILE_SUFFIX)


def format_modelfile(
    gguf_name: str,
    chat_template: str | None,
    template_variables: Mapping[str, str],
    bos: str,
    stop_tokens: Sequence[str],
) -> str:
    """Formats the Modelfile of a GGUF file of this name beside it.

    Where turns depend on more than their role and place, Ollama is left to find a template, as a comment says.

    Args:
        chat_template: None where the prompt is taken as it is.
        template_variables: the special tokens that the template is given.
        bos: what the tokenizer puts before every text.
        stop_tokens: tokens that end an answer.
    """
    text = "{{ .Prompt }}" if chat_template is None else _convert_to_go_template(chat_template, template_variables, bos)
    template = f'TEMPLATE """{text}"""'
    if text is None:
        template = "# its chat template cannot be written in Ollama's language: turns depend on more than their role"
    stops = [f"PARAMETER stop {_quote_go(token)}" for token in stop_tokens]
    return "\n".join([f"FROM ./{gguf_name}", template, *stops, ""])


def _convert_to_go_template(chat_template: str, template_variables: Mapping[str, str], bos: str) -> str | None:
    """Converts a template by what stands between the texts of conversations; None where that differs."""

    def render_separators(*roles: str) -> list[str]:
        template = SandboxedTemplate(chat_template)
        messages = [{"role": role, "content": f"zq{i}zq"} for i, role in enumerate(roles)]
        others = {"tools": None, "documents": None, "marks": ()}
        text = template.render(messages=messages, add_generation_prompt=True, **others, **template_variables)
        return re.split(r"zq\d+zq", text)

    turns = ("user", "assistant") * 2
    try:
        opening, after_system, after_user, after_answer, *more = render_separators("system", *turns, "user")
        alone, *rest = render_separators(*turns, "user")
    except Exception:  # as templates may refuse roles, and fail in their own ways
        return None
    *regular, asking = more
    if regular != [after_user, after_answer] or rest != [*regular, *more]:
        return None
    opening, alone = (text.removeprefix(bos) for text in (opening, alone))
    pieces = {"OPENING": opening, "AFTER_SYSTEM": after_system, "ALONE": alone}
    pieces |= {"AFTER_USER": after_user, "ASKING": asking, "AFTER_ANSWER": after_answer}
    actions = {name: f"{{{{ {_quote_go(text)} }}}}" if text else "" for name, text in pieces.items()}
    return re.sub(r"\{\{ ([A-Z_]+) \}\}", lambda match: actions[match[1]], _TURNS)


def _quote_go(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
