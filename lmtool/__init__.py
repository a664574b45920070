"""lmtool: pretrain, fine-tune, decode and look at every kind of language model."""

__version__ = "0.1.0"
