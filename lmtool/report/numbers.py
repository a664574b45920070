"""Numbers on axes: chooses ticks and formats them."""

import math
from collections.abc import Sequence


def find_nonempty_range(values: Sequence[float]) -> tuple[float, float]:
    """Returns the lowest and the highest value, widened if they are equal."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low > 1e-12 * max(abs(low), abs(high)):
        return low, high
    return (low - abs(low) / 2, high + abs(high) / 2) if low else (0.0, 1.0)


def choose_ticks(low: float, high: float, max_ticks: int = 6) -> list[float]:
    """Returns at most `max_ticks` round numbers in a range: multiples of 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10((high - low) / max_ticks))
    for step in (power * factor for factor in (1, 2, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < max_ticks:
            break
    return [round(i * step, 12) for i in range(first, last + 1)]


def choose_log_ticks(low_exponent: float, high_exponent: float, max_ticks: int = 6) -> list[float]:
    """Returns at most `max_ticks` round numbers between two powers of ten: powers of ten, and others if they fit."""
    low_exponent, high_exponent = max(-307.0, low_exponent), min(307.0, high_exponent)
    powers = [10.0**power for power in range(math.floor(low_exponent), math.floor(high_exponent) + 1)]
    for between in (range(1, 10), (1, 2, 5), (1, 3), (1,)):
        found = [factor * power for power in powers for factor in between]
        found = [value for value in found if low_exponent <= math.log10(value) <= high_exponent]
        if len(found) <= max_ticks:
            break
    found = found[:: -(-len(found) // max_ticks) or 1]
    return found if len(found) > 1 else choose_ticks(10.0**low_exponent, 10.0**high_exponent, max_ticks)


def format_tick(value: float) -> str:
    """Formats a number for an axis: 1500000 as 1.5M, 0.0003 as 3e-4."""
    size = abs(value)
    for unit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            scale = 1e3 if suffix == "k" else unit
            return f"{value / scale:.4g}{suffix}"
    if 0 < size < 1e-2:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return format_number(value)


def format_number(value: float) -> str:
    """Formats a number with at least four significant digits and commas between thousands."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
