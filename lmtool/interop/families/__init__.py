"""The published families that can be imported and exported: a file of rows for each, read in both directions."""

from lmtool.interop.families.tables import load_family, load_gguf_family

EVERY = tuple(
    map(
        load_family,
        (
            *("gpt2", "llama", "gpt_neox", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "bloom", "mpt"),
            *("phi3", "starcoder2", "roberta", "distilbert", "bert", "electra", "modernbert", "eurobert"),
            *("xlm-roberta", "t5", "bart", "marian", "pegasus", "stablelm"),
        ),
    )
)
"""In the order of preference for export: the most natural of those that can express a recipe comes first."""

FAMILIES = {family.model_type: family for family in EVERY}
"""Each by its `model_type`."""

GGUF_FAMILIES = tuple(
    map(load_gguf_family, ("gpt2", "llama", "gpt_neox", "qwen2", "qwen3", "gemma", "olmo2", "starcoder2", "stablelm"))
)
"""The same of GGUF files."""
