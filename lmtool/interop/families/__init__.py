"""The published families that can be imported and exported: a file of rows for each, read in both directions."""

from lmtool.interop.families.tables import load_family, load_gguf_family

FAMILIES = {
    model_type: load_family(model_type)
    for model_type in (
        *("gpt2", "llama", "gpt_neox", "mistral", "qwen2", "qwen3", "gemma", "olmo2", "bloom", "mpt"),
        *("phi3", "starcoder2", "roberta", "distilbert", "bert", "electra", "modernbert", "eurobert"),
        *("xlm-roberta", "t5", "bart", "marian", "pegasus", "stablelm"),
    )
}
"""By `model_type`, in the order of preference for export: the most natural family of several comes first."""

GGUF_FAMILIES = {
    model_type: load_gguf_family(model_type)
    for model_type in ("gpt2", "llama", "gpt_neox", "qwen2", "qwen3", "gemma", "olmo2", "starcoder2", "stablelm")
}
"""The families of GGUF files, by `model_type` and in the same order."""
