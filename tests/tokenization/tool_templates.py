"""Chat templates that write calls of functions in the conventions of published models, and tokenizers for them."""

from pathlib import Path
from typing import Any, NamedTuple

from lmtool.tokenization.chat import ChatFormat
from lmtool.tokenization.tokenizer import Tokenizer
from tests.tokenization.chat_templates import PUBLISHED, publish

QWEN = """{%- if tools %}
{{- '<|im_start|>system\\nYou may call:\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role }}
{%- if message.content or not message.tool_calls %}{{- '\\n' + message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- set call = call.function if call.function is defined else call %}
{{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{{- call.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
THINKING = QWEN.replace(
    """{%- if message.content or not message.tool_calls %}{{- '\\n' + message.content }}{%- endif %}""",
    """{%- if message.role == 'assistant' and loop.last %}{{- '\\n<think>\\n\\n</think>\\n' }}{%- endif %}
{%- if message.content or not message.tool_calls %}{{- '\\n' + message.content }}{%- endif %}""",
)
LLAMA = """{{- bos_token }}
{%- if tools %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nAnswer by a function: ' }}
{%- for tool in tools %}{{- tool.function | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{{- '<|eot_id|>' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content | tojson + '<|eot_id|>' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}{{- raise_exception('one call at a time, please') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{{- '{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}
{{- '}<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
MISTRAL = """{{- bos_token }}
{%- set last = namespace(user=0) %}
{%- for message in messages if message.role == 'user' %}{%- set last.user = message %}{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and message == last.user %}
{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' }}
{%- endif %}
{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.tool_calls is defined %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{{- (call.function | tojson)[:-1] }}
{%- if call.id | length != 9 %}{{- raise_exception('ids of calls have 9 letters') }}{%- endif %}
{{- ', "id": "' + call.id + '"}' }}
{%- if not loop.last %}{{- ', ' }}{%- else %}{{- ']' + eos_token }}{%- endif %}
{%- endfor %}
{%- elif message.role == 'assistant' %}
{{- ' ' + message.content | trim + eos_token }}
{%- else %}
{%- if message.tool_call_id | length != 9 %}{{- raise_exception('ids of calls have 9 letters') }}{%- endif %}
{{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + ', "call_id": "' + message.tool_call_id + '"}' }}
{{- '[/TOOL_RESULTS]' }}
{%- endif %}
{%- endfor %}"""
JSON = LLAMA.replace('"parameters": ', '"arguments": ')

_MARKS = ("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")


class Calling(NamedTuple):
    """A template that writes calls, on the tokenizer of a published model. specials: more of it."""

    template: str
    model: str
    specials: tuple[str, ...] = ()


CALLING = {
    "qwen": Calling(QWEN, "qwen"),
    "thinking": Calling(THINKING, "qwen"),
    "hermes": Calling(QWEN, "qwen", ("<tool_call>", "</tool_call>")),
    "llama": Calling(LLAMA, "llama3"),
    "mistral": Calling(MISTRAL, "mistral-words", _MARKS),
    "mistral-pieces": Calling(MISTRAL, "mistral", ("[INST]", "[/INST]", *_MARKS)),
    "json": Calling(JSON, "llama3"),
}
_CITY = {"city": {"type": "string"}, "days": {"type": "integer"}}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "get_weather": {"properties": _CITY, "required": ["city"]},
    "now": {"properties": {}},
}
TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {"name": name, "description": "Says it.", "parameters": {"type": "object", **schema}},
    }
    for name, schema in _SCHEMAS.items()
)


def calling(folder: Path, name: str) -> ChatFormat:
    """The format of a model that calls functions."""
    own = CALLING[name]
    base = PUBLISHED[own.model]
    calls = base._replace(template=own.template, specials=(*base.specials, *own.specials))
    return ChatFormat.from_tokenizer_or_plain(Tokenizer.load(publish(folder / name, calls)))
