"""A small Transformer with a head, and examples of its labels."""

from typing import Any

import torch

MODEL: dict[str, Any] = {"kind": "transformer", "n_layers": 1, "d_model": 16, "n_heads": 4, "context": 24}
HEAD: dict[str, Any] = {"kind": "classification", "task": "class", "labels": ["a", "b"], "dropout": 0.0}
LABELS = {"labels_B": torch.tensor([0, 1, 1])}
