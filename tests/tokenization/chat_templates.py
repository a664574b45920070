"""Chat templates as published models have them, and small tokenizers with their special tokens."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Inner

from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.published_tokenizers import byte_cut, byte_level

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""  # noqa: E501  as published
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token}}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}"
    "{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
)
GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


class Published(NamedTuple):
    """A chat template and its tokenizer. end: the token that ends the assistant's turns."""

    template: str
    kind: str
    specials: tuple[str, ...]
    bos: str | None
    eos: str
    end: str
    system: bool = True


_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_LLAMA3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_GEMMA = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
PUBLISHED = {
    "smollm2": Published(CHATML, "bytes", _CHATML[1:], "<|im_start|>", "<|im_end|>", "<|im_end|>"),
    "qwen": Published(QWEN, "bytes", _CHATML, None, "<|endoftext|>", "<|im_end|>"),
    "llama3": Published(LLAMA3, "bytes", _LLAMA3, "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
    "mistral": Published(MISTRAL, "pieces", ("<unk>", "<s>", "</s>"), "<s>", "</s>", "</s>", False),
    "mistral-words": Published(MISTRAL, "bytes", ("<s>", "</s>", "[INST]", "[/INST]"), "<s>", "</s>", "</s>", False),
    "gemma": Published(GEMMA, "unigram", _GEMMA, "<bos>", "<eos>", "<end_of_turn>", False),
    "generation": Published(GENERATION, "bytes", _CHATML, None, "<|endoftext|>", "<|im_end|>"),
}
TEXTS = [
    "Who saw the ball? Tom saw it. You are kind, user and assistant: system 2024 model INST good bad dog cat ran "
    "<|> /\n\n"
] * 3


def publish(folder: Path, of: str | Published, **changes: Any) -> Path:
    """Writes the tokenizer of a published model as its folder has it."""
    own = PUBLISHED[of] if isinstance(of, str) else of
    inner = _trained(own.kind, own.specials)
    if own.bos in ("<|begin_of_text|>", "<s>", "<bos>"):
        tokens = [(own.bos, inner.token_to_id(own.bos))]
        both = f"{own.bos} $A {own.bos} $B:1"
        inner.post_processor = processors.TemplateProcessing(f"{own.bos} $A", both, tokens)
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {"eos_token": own.eos, "chat_template": own.template}
    if own.bos is not None:
        config["bos_token"] = own.bos
    if "<unk>" in own.specials:
        config["unk_token"] = "<unk>"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(inner.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return folder


def published(folder: Path, name: str, **changes: Any) -> Tokenizer:
    return Tokenizer.load(publish(folder, name, **changes))


def _trained(kind: str, specials: tuple[str, ...]) -> Inner:
    added = [AddedToken(text, special=True, normalized=False) for text in specials]
    if kind == "bytes":
        cut = byte_cut(r"'s|\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
        return byte_level(added, cut=cut, texts=TEXTS, vocab_size=400)
    trainer: Any
    if kind == "pieces":
        inner = Inner(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        inner.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        fallbacks = [AddedToken(f"<0x{byte:02X}>", special=False, normalized=False) for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=[*added, *fallbacks], show_progress=False)
    else:
        inner = Inner(models.Unigram())
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        inner.decoder = decoders.Metaspace(prepend_scheme="never")
        trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=added, unk_token="<unk>", show_progress=False)
    inner.train_from_iterator(TEXTS, trainer)
    content = json.loads(inner.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] in specials]
    return Inner.from_str(json.dumps(content))
