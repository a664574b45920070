"""One reader under coverage-guided fuzzing by atheris, which is no dependency of the tests: `pip install atheris`.

    python -m tests.fuzz.guided gguf -max_total_time=300

Arguments after the name are libFuzzer's. What reaches new code is kept in build/fuzz/corpus/, and an input that fails
is written to the working directory.
"""

import contextlib
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["lmtool"]):
    from lmtool.errors import LmtoolError
    from tests.fuzz.readers import READERS

ROOT = Path(__file__).parents[2]


def main() -> None:
    name, *options = sys.argv[1:]
    reader = READERS[name]
    corpus = ROOT / "build" / "fuzz" / "corpus" / name.replace(" ", "-")
    corpus.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "seeds").mkdir()
        for number, content in enumerate(reader.seeds(folder / "seeds")):
            (corpus / f"valid-{number}").write_bytes(content)
        place = folder / "place"
        place.mkdir()

        def read(content: bytes) -> None:
            with contextlib.suppress(LmtoolError):
                reader.read(place, content)

        limits = ["-timeout=10", "-rss_limit_mb=3072", "-max_len=100000"]
        atheris.Setup([sys.argv[0], *limits, *options, str(corpus)], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
