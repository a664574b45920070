#!/usr/bin/env python3
"""Runs the commands of docs/gallery/, and writes what they print and draw onto its pages.

    scripts/gallery.py [PAGE...]

PAGE: pages to run, without .md; all by default, in half an hour on one core. Data and published models that a page
fetches come by pip and npm, and models of the course from build/course-models/. The pages are written as docs/course.md
is, whose markers `course.py` explains; they run in build/gallery/.
"""

import re
import sys
from pathlib import Path

from course import PAGE as COURSE
from course import Course
from course_models import FOLDER as MODELS
from course_models import Models
from pictures import PICTURES

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "gallery"
FOLDER = ROOT / "build" / "gallery"


def main(names: list[str]) -> None:
    if not FOLDER.exists():
        Models(MODELS, COURSE.read_text(encoding="utf-8")).copy_to(FOLDER)
    for page in [PAGES / f"{name}.md" for name in names] or sorted(PAGES.glob("*.md")):
        filled = Course(FOLDER, PICTURES, []).run(page.read_text(encoding="utf-8"))
        filled = re.sub(r"\nTakes about [^\n]+\n", "", filled)
        page.write_text(filled.replace("](pictures/", "](../pictures/"), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
