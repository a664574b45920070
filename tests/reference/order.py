"""The keyed permutation with Python's own integers, one index at a time."""

import math

WORD = 2**64


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def permute(index: int, n: int, key: int) -> int:
    height = math.ceil(math.sqrt(n))
    width = math.ceil(n / height)
    while True:
        row, column = index // width, index % width
        round_key = mix(key)
        for number in range(24):
            round_key = (round_key + 0x9E3779B97F4A7C15) % WORD
            if number % 2 == 0:
                row = (row + mix(column ^ mix(round_key)) // 2) % height
            else:
                column = (column + mix(row ^ mix(round_key)) // 2) % width
        index = row * width + column
        if index < n:
            return index
