"""A small model that holds conversations, published as on the hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from torch import nn

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' and 'refuse me' in message.content %}{{ raise_exception('no, thanks') }}{% endif %}"
    "{{ '<|start|>' + message.role + '\n' + message.content | trim + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
NAMES = ["<s>", "</s>", "<|start|>", "<|end|>"]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TEXTS = ["Who saw the ball?", "Tom saw it, and Anna too.", "yes it is", "system user assistant"]


def publish(folder: Path, *, context: int = 256, template: str | None = TEMPLATE, names: Sequence[str] = NAMES) -> Path:
    """Save a random model of Transformers with a chat template, whose turns end with <|end|>, into a new folder.

    names: of its special tokens.
    """
    inner = Inner(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(names), initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    inner.train_from_iterator(TEXTS, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", inner.token_to_id("<s>"))]
    )
    config = transformers.LlamaConfig(
        vocab_size=inner.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=context,
        bos_token_id=0,
        eos_token_id=1,
    )
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    peer(inner, template, names).save_pretrained(folder)
    return folder


def peer(inner: Inner, template: str | None, names: Sequence[str] = NAMES) -> Any:
    """The tokenizer of Transformers."""
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **SPECIAL)
    made.add_special_tokens({"additional_special_tokens": list(names[2:])})
    made.chat_template = template
    return made
