"""Pictures of recipes, of batches and of tokenized texts: `recipes draw`, `recipes batch`, `tokenize --html`."""

from pathlib import Path

from tests.support.cli import CommandLine, settings, write_table


def test_a_recipe_is_drawn(lmtool: CommandLine, home: Path) -> None:
    outcome = lmtool.succeeds("recipes", "draw", "tiny", "-s", "model.n_layers=7")
    assert outcome.out.startswith("tiny: transformer decoder\n")
    assert "7 x layer" in outcome.out
    assert outcome.err == ""
    assert lmtool.succeeds("recipes", "draw", "t5-tiny", "-o", "t5.html").out == "t5.html\n"
    assert "default-src" in (home / "t5.html").read_text()
    small = settings(model_d_model=6, model_n_heads=1, model_context=4)
    assert lmtool.succeeds("recipes", "draw", "transformer-tiny", *small, "--numbers").out.startswith("PE(p)")


def test_pieces_as_a_page(lmtool: CommandLine, run: Path) -> None:
    show = "tokenize", "--tokenizer", "last", "--show", "The map"
    plain = lmtool.succeeds(*show).out
    assert lmtool.succeeds(*show, "--html", "pieces.html").out == plain
    assert "Merges, in order" in Path("pieces.html").read_text(encoding="utf-8")


def test_a_batch_of_typed_texts(lmtool: CommandLine, run: Path) -> None:
    """With the tokenizer of a run, which has seen no other text."""
    typed = "recipes", "batch", "last", "The baker sold a map at dawn."
    lines = lmtool.succeeds(*typed).out.splitlines()
    assert lines[0].startswith("transformer decoder, objective causal: ")
    assert lines[4].split() == ["position", "id", "piece", "target"]
    assert lmtool.succeeds(*typed, "-o", "batch.html").out == "batch.html\n"
    assert "What the model is given" in Path("batch.html").read_text(encoding="utf-8")


def test_a_batch_of_a_run_for_tables(lmtool: CommandLine, home: Path) -> None:
    write_table(home / "table.csv", [(f"word {n}", "ab"[n % 2]) for n in range(40)])
    lmtool.succeeds("finetune", "table.csv", "-r", "dan", "-s", "training.steps=2", "-q", "-o", "runs/dan")
    assert lmtool.succeeds("recipes", "batch", "dan", "table.csv").out.count("label: ") == 1
    lmtool.refuses(2, "recipes", "batch", "runs/dan", "The baker was good.", words=["--from dan"])
