"""The results of a suite as a page."""

import json

from lmtool.report.page import Section, facts, page, table
from lmtool.tasks.suites.results import SuiteResults


def suite_page(run: str, step: int, results: SuiteResults) -> str:
    """An HTML page that stands alone: all figures, and each task as it was read."""
    header, *rows = results.cells()
    told = "95 % intervals; centred is the share of the way from guessing to all right"
    sections = [Section("Results", table(header, rows, caption=told, headed=True))]
    for name, one in results.tasks.items():
        pairs = one.task.model_dump(mode="json", exclude_none=True).items()
        sections.append(Section(name, facts((key, json.dumps(value, ensure_ascii=False)) for key, value in pairs)))
    return page(f"Suite {results.suite}", sections, lead=f"{run}, step {step}")
