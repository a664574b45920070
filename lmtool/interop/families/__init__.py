"""The published families that can be imported and exported."""

from lmtool.interop.families.bert import Bert, DistilBert, Electra, Roberta
from lmtool.interop.families.family import Family
from lmtool.interop.families.gpt import Bloom, Gpt2, GptNeoX, Mpt
from lmtool.interop.families.llama import Gemma, Llama, Mistral, Olmo2, Qwen2, Qwen3
from lmtool.interop.families.modernbert import ModernBert
from lmtool.interop.families.seq2seq import T5, Bart, Marian, Pegasus

EVERY: tuple[Family, ...] = (
    *(Gpt2(), Llama(), GptNeoX(), Mistral(), Qwen2(), Qwen3(), Gemma(), Olmo2(), Bloom(), Mpt()),
    *(Roberta(), DistilBert(), Bert(), Electra(), ModernBert()),
    *(T5(), Bart(), Marian(), Pegasus()),
)
"""In the order of preference for export: the most natural of those that can express a recipe comes first."""

FAMILIES = {family.model_type: family for family in EVERY}
"""Each by its `model_type`."""
