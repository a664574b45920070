"""The generator of the bundled data is a folder of programs beside the package: put it on the path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "data" / "make"))
