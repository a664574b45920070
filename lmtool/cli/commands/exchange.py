"""`lmtool import` and `lmtool export`: published models in, published models out."""

from pathlib import Path
from typing import Literal

from lmtool.cli.arguments import OutputDir, Quiet, RunName
from lmtool.cli.help import argument, flag, option
from lmtool.cli.output import put, tell, warn
from lmtool.cli.progress import Display
from lmtool.errors import UsageError

GGUF = ".gguf"


def import_model(
    model: str = argument("MODEL", "hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file.", ...),
    output: OutputDir = None,
    quiet: Quiet = False,
) -> None:
    """Make a run of a published model: its recipe, its tokenizer, and its weights as a checkpoint at step 0.

    Wherever a RUN is taken, a published model is taken too, and imported into the cache. Prints the run directory.

    Examples:
    lmtool import hf:openai-community/gpt2
    lmtool import model.gguf -o runs/model
    """
    from lmtool.interop.importing import import_run

    with Display(shown=True, quiet=quiet) as display:
        run = import_run(model, output, display.report)
    put(run)


def export_run(
    run: RunName,
    output: Path = argument("OUTPUT", "A new directory, or a new .gguf file.", ...),
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        "", "Data type of the weights in a directory.", shown="float32"
    ),
    shard_size: float | None = option("GB", "Size of the largest file of weights.", shown="5.0", min=0.001),
    gguf: Literal["f16", "q8_0"] | None = option(
        "", "Write a GGUF file with matrices of this type.", shown="f16 for a name with .gguf"
    ),
    adapters: bool = flag("Write only adapters and head, as a directory for PEFT.", "--adapters"),
    quiet: Quiet = False,
) -> None:
    """Write a run as a directory that Transformers opens, or as a GGUF file, also where OUTPUT ends in .gguf.

    Adapters are merged into the weights, unless only they are asked for. Prints the output.

    Examples:
    lmtool export last exported
    lmtool export last model.gguf --gguf q8_0
    """
    from lmtool.export.adapters import export_adapters
    from lmtool.export.exporting import SHARD, export, export_gguf

    if output.suffix.lower() == GGUF:
        gguf = gguf or "f16"
    if gguf is not None:
        where = "--gguf" if output.suffix.lower() != GGUF else str(output)
        if adapters:
            raise UsageError("GGUF files hold whole models", where=where, fix="omit --adapters, which are merged")
        for name, value in (("--dtype", dtype), ("--shard-size", shard_size)):
            if value is not None:
                fix = f"omit {name}; --gguf f16 or q8_0 is the type of its matrices"
                raise UsageError(f"{name} is for a directory, and this is a GGUF file", where=where, fix=fix)
        exported = export_gguf(run, output, gguf)
    elif adapters:
        exported = export_adapters(run, output, dtype or "float32")
    else:
        shard = SHARD if shard_size is None else round(shard_size * 1e9)
        exported = export(run, output, dtype=dtype or "float32", shard=shard)
    warn(exported.base.warnings)
    if not quiet:
        tell(f"exported as {exported.describe()}")
    put(output)
