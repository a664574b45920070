"""What a form costs: milliseconds a step with and without one, and how many steps a schema saves where it is certain.

python benchmarks/forms.py RUN
"""

import argparse
import json
import statistics
import time

from lmtool.generation.forms import TextForm
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingParams

PROMPT = "A short story about a sailor:"
LONG = TextForm("json-schema", json.dumps({"type": "string", "minLength": 4000}))
"""Of which nothing is certain for long, so that each token is a step."""

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "address": {
            "type": "object",
            "properties": {
                "street": {"type": "string", "maxLength": 20},
                "zip_code": {"type": "string", "pattern": "^[0-9]{5}$"},
            },
            "required": ["street", "zip_code"],
            "additionalProperties": False,
        },
        "is_customer": {"type": "boolean"},
    },
    "required": ["name", "age", "address", "is_customer"],
    "additionalProperties": False,
}


def seconds(generator: TextGenerator, form: TextForm | None, n_rows: int, n_tokens: int) -> float:
    """Seconds a token of each of n texts, after the first one."""
    settings = SamplingParams("greedy", max_new_tokens=n_tokens, min_new_tokens=n_tokens, form=form)
    pieces = generator.generate([f"{PROMPT} {i}." for i in range(n_rows)], settings)
    for _ in range(n_rows):
        next(pieces)
    began = time.perf_counter()
    assert sum(1 for _ in pieces) == n_rows * (n_tokens - 1)
    return (time.perf_counter() - began) / (n_tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    generator = TextGenerator.open(arguments.run, device="cpu")
    print(f"{arguments.run}, {arguments.tokens} tokens, medians of {arguments.rounds} rounds")
    for n_rows in (1, 16):
        pairs = [
            [seconds(generator, form, n_rows, arguments.tokens) for form in (None, LONG)]
            for _ in range(arguments.rounds)
        ]
        free, constrained = (statistics.median(column) * 1e3 for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"{n_rows:2} texts: {free:6.1f} ms a step without a form, {constrained:6.1f} with one, ratio {ratio:.3f}")
    form = TextForm("json-schema", json.dumps(PERSON))
    times = []
    for _ in range(arguments.rounds):
        began = time.perf_counter()
        (one,) = generator.completions("A customer as JSON:", SamplingParams("greedy", max_new_tokens=200, form=form))
        times.append(time.perf_counter() - began)
        json.loads(one.text)
    certain = sum(p == 0 for p in one.constrained or ())
    print(f"a record of {len(one.tokens)} tokens, {certain} of them certain: {statistics.median(times):.2f} s")
    print(one.text)


if __name__ == "__main__":
    main()
