"""BERT's masks (Devlin et al. 2019, section 3.1 and appendix A.1), with the random numbers as arguments."""

from collections.abc import Collection, Sequence


def corrupted(
    ids: Sequence[int], numbers: Sequence[tuple[float, float, int]], mask: int, special: Collection[int]
) -> tuple[list[int], list[int]]:
    """What is read, and what is to be predicted: -100 where nothing is."""
    read, targets = list(ids), [-100] * len(ids)
    for i, (choice, fate, other) in enumerate(numbers):
        if ids[i] in special or not choice < 0.15:
            continue
        targets[i] = ids[i]
        if fate < 0.8:
            read[i] = mask
        elif fate < 0.9:
            read[i] = other
    return read, targets


def loss(log_p_TV: Sequence[Sequence[float]], targets: Sequence[int]) -> float:
    chosen = [-log_p_TV[i][target] for i, target in enumerate(targets) if target != -100]
    return sum(chosen) / len(chosen) if chosen else 0.0


def words(text: str, places: Sequence[tuple[int, int]], special: Sequence[bool]) -> list[list[int]]:
    """The tokens of each word (whole-word masking, Cui et al. 2019): those that lie in one run of letters and digits.

    A token without any is a word by itself; a special one is none. places: characters of each token, start and stop.
    """
    found: dict[object, list[int]] = {}
    for t, (start, stop) in enumerate(places):
        inside = [i for i in range(start, stop) if text[i].isalnum()]
        begin = inside[0] if inside else None
        while begin and text[begin - 1].isalnum():
            begin -= 1
        if not special[t]:
            found.setdefault(("mark", t) if begin is None else begin, []).append(t)
    return list(found.values())
