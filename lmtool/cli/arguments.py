"""Arguments and options that several commands share, as annotated types."""

import logging
from pathlib import Path
from typing import Annotated, Literal

from lmtool.cli.help import argument, file_to_write, flag, folder_to_write, shared

TEXT_HELP = (
    "Files, folders or globs (.txt .jsonl .json .csv .parquet, also .gz or .zst), hf:NAME, or - for standard input."
)
RUN_HELP = (
    "A run's name or directory, RUN@STEP or a checkpoint directory, last, hf:ORG/NAME, or a published model's "
    "directory or .gguf."
)

TypedText = Annotated[list[str] | None, shared("TEXT", "A text itself. May be repeated.", "--text")]
RunName = Annotated[str, argument("RUN", RUN_HELP, ..., shown=True)]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], shared("", "Device to compute on.")]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16", "bf16", "float16", "int8", "int4"],
    shared("", "Data type of matrices and their products; bf16 is short for bfloat16."),
]
Json = Annotated[bool, flag("Print JSON for other programs.", "--json", default=...)]


def _set_compute_log_level(quiet: bool) -> bool:
    """Hides log messages of computing, such as that kernels are being compiled, if `quiet`. Returns `quiet`."""
    logging.getLogger("lmtool.compute").setLevel(logging.WARNING if quiet else logging.NOTSET)
    return quiet


Quiet = Annotated[
    bool, flag("Print results and warnings only.", "--quiet", "-q", default=..., callback=_set_compute_log_level)
]
OUTPUT_HELP = "Run directory; a new one in runs/ by default."
OutputDir = Annotated[Path | None, shared("DIR", OUTPUT_HELP, "--output", "-o", parser=folder_to_write)]
HtmlFile = Annotated[
    Path | None, shared("FILE", "Write an HTML page that needs no network.", "--output", "-o", parser=file_to_write)
]
TaskName = Annotated[str, shared("NAME", "One of the tasks that the run was trained on.", "--task", shown=False)]
TASKS_HELP = (
    "Tasks of lm-eval: their names, YAML files of tasks, or folders of them; bundled and bigbench come with lmtool."
)
NumBeams = Annotated[int | None, shared("N", "Beam width of the search that generates output texts.", min=1)]
START_OR_RESUME_HELP = "Continue the run in -o DIR, if there is one; do nothing if it is finished."
StartOrResume = Annotated[bool, flag(START_OR_RESUME_HELP, "--start-or-resume", default=...)]
UNTIL_HELP = "Stop after this share of the steps, such as 0.5, and save; lmtool resume goes on."
Until = Annotated[float, shared("SHARE", UNTIL_HELP, shown=False, min=0.0, max=1.0)]
PROFILE_HELP = "Trace some steps by torch.profiler, into the run directory."
Profile = Annotated[bool, flag(PROFILE_HELP, "--profile", default=...)]
