from collections.abc import Collection, Sequence

IGNORE = -100
Numbers = Sequence[tuple[float, float, int]]


def corrupt(ids: Sequence[int], numbers: Numbers, mask: int, special: Collection[int]) -> tuple[list[int], list[int]]:
    chosen = [number < 0.15 and token not in special for token, (number, _, _) in zip(ids, numbers, strict=True)]
    becomes = [
        mask if fate < 0.8 else other if fate < 0.9 else i for i, (_, fate, other) in zip(ids, numbers, strict=True)
    ]
    read = [new if hit else old for hit, new, old in zip(chosen, becomes, ids, strict=True)]
    return read, [token if hit else IGNORE for hit, token in zip(chosen, ids, strict=True)]


def loss(log_p_TV: Sequence[Sequence[float]], targets: Sequence[int]) -> float:
    found = [row[target] for row, target in zip(log_p_TV, targets, strict=True) if target != IGNORE]
    return -sum(found) / max(1, len(found))
