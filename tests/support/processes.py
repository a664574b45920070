"""What tests of several processes share."""

from pathlib import Path

# No dropout: every process draws its own mask.
TOGETHER = ("model.dropout=0", "training.micro_batch=3", "evaluation.every=5", "checkpoint.every=5")


def rank(parent: int, number: int) -> int:
    """Process id of a rank that torchrun started, or forked: those it forks in their order."""
    forked = []
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or f"\nPPid:\t{parent}\n" not in (folder / "status").read_text():
                continue
            variables = (folder / "environ").read_text().split("\0")
            if f"RANK={number}" in variables:
                return int(folder.name)
            begun = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
        except OSError:
            continue
        if not any(variable.startswith("RANK=") for variable in variables):
            forked.append((begun, int(folder.name)))
    assert number < len(forked), f"no process of rank {number}"
    return sorted(forked)[number][1]
