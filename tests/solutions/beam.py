import heapq
from collections.abc import Callable

LogP = Callable[[list[int]], list[float]]


def greedy(log_p: LogP, end: int, longest: int) -> list[int]:
    ids: list[int] = []
    while len(ids) < longest and (not ids or ids[-1] != end):
        scores = log_p(ids)
        ids.append(max(range(len(scores)), key=scores.__getitem__))
    return ids


def beam_search(log_p: LogP, end: int, longest: int, k: int) -> list[tuple[float, list[int]]]:
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for n in range(1, longest + 1):
        longer = [(total + s, [*ids, v]) for total, ids in live for v, s in enumerate(log_p(ids))]
        best = heapq.nlargest(2 * k, longer, key=lambda text: text[0])
        ends = [text[1][-1] == end or n == longest for text in best]
        finished += [(total / n, ids) for (total, ids), is_end in zip(best[:k], ends, strict=False) if is_end]
        finished = heapq.nlargest(k, finished, key=lambda text: text[0])
        live = [text for text, is_end in zip(best, ends, strict=True) if not is_end][:k]
        if not live or (len(finished) == k and max(live)[0] / n <= finished[-1][0]):
            break
    return finished
