"""The tokenizers of published models."""
