"""Pages and pictures of recipes and of tokenized texts, by `recipes draw` and `tokenize --html`."""

from pathlib import Path


def test_a_recipe_is_drawn(lmtool, home):
    outcome = lmtool.succeeds("recipes", "draw", "tiny", "-s", "model.n_layers=7")
    assert outcome.out.startswith("tiny: transformer decoder\n")
    assert "7 x layer" in outcome.out
    assert outcome.err == ""


def test_a_page_is_written_once(lmtool, home):
    outcome = lmtool.succeeds("recipes", "draw", "t5-tiny", "-o", "t5.html")
    assert outcome.out == "t5.html\n"
    html = (home / "t5.html").read_text()
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html
    lmtool.refuses(2, "recipes", "draw", "t5-tiny", "-o", "t5.html", words=["t5.html", "exists"])
    assert (home / "t5.html").read_text() == html


def test_numbers_are_printed(lmtool, home):
    small = [word for size in ("d_model=6", "n_heads=1", "context=4") for word in ("-s", f"model.{size}")]
    draw = "recipes", "draw", "transformer-tiny", *small, "--numbers"
    assert lmtool.succeeds(*draw).out.startswith("PE(p)")
    lmtool.refuses(2, *draw, "-o", "page.html", words=["omit -o"])
    lmtool.refuses(2, "recipes", "draw", "transformer-tiny", "--numbers", words=["d_model=6"])
    lmtool.refuses(2, *draw, "-s", "model.d_ff=1000000000", words=["too much"])


def test_what_cannot_be_drawn(lmtool, home):
    lmtool.refuses(2, "recipes", "draw", "no-such-recipe")
    lmtool.refuses(2, "recipes", "draw", "tiny", "-s", "model.n_heads=7")
    lmtool.refuses(5, "recipes", "draw", "tiny", "-o", "nowhere/page.html", words=["nowhere"])


def test_pieces_as_a_page(lmtool, run):
    show = "tokenize", "--tokenizer", "last", "--show", "The map"
    plain = lmtool.succeeds(*show).out
    assert lmtool.succeeds(*show, "--html", "pieces.html").out == plain
    assert "Merges, in order" in Path("pieces.html").read_text(encoding="utf-8")
    lmtool.refuses(2, *show, "--html", "pieces.html", words=["pieces.html"])
    lmtool.refuses(2, "tokenize", "--tokenizer", "last", "--html", "other.html", words=["--show"])


def test_a_batch_of_typed_texts(lmtool, run):
    """With the tokenizer of a run, which has seen no other text."""
    typed = "recipes", "batch", "last", "The baker sold a map at dawn."
    lines = lmtool.succeeds(*typed).out.splitlines()
    assert lines[0].startswith("transformer decoder, objective causal: ")
    assert lines[4].split() == ["position", "id", "piece", "target"]
    assert lmtool.succeeds(*typed, "-o", "batch.html").out == "batch.html\n"
    assert "What the model is given" in Path("batch.html").read_text(encoding="utf-8")
    lmtool.refuses(2, *typed, "-o", "batch.html", words=["batch.html", "exists"])


def test_batches_that_cannot_be_shown(lmtool, home, corpus):
    lmtool.refuses(2, "recipes", "batch", "dan", "The baker was good.", words=["dan", "on a table"])
    lmtool.refuses(3, "recipes", "batch", "tiny", "no-such.txt", words=["no-such.txt"])
    lmtool.refuses(4, "recipes", "batch", "no-such-run", corpus, words=["no-such-run"])
    lmtool.refuses(2, "recipes", "batch", "tiny", corpus, "-s", "model.n_heads=7")


def test_a_run_for_tables_reads_no_text(lmtool, home):
    Path("table.csv").write_text("text,label\n" + "".join(f"word {n},{'ab'[n % 2]}\n" for n in range(40)))
    lmtool.succeeds("finetune", "table.csv", "--recipe", "dan", "-s", "training.steps=2", "-q", "-o", "runs/dan")
    assert lmtool.succeeds("recipes", "batch", "dan", "table.csv").out.count("label: ") == 1
    for command in (
        ("recipes", "batch", "runs/dan", "The baker was good."),
        ("plan", "data/stories.txt", "--from", "dan"),
    ):
        lmtool.refuses(2, *command, words=["on a table", "--from dan"])
