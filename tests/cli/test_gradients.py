"""`lmtool gradients`: norms of gradients, and how fast the first state is forgotten."""

from pathlib import Path

from tests.support.cli import CommandLine, settings

TEXT = "The baker found a map at dawn."


def test_norms_as_a_curve_json_and_a_page(lmtool: CommandLine, run: Path) -> None:
    assert "log10 of the gradient norm" in lmtool.succeeds("gradients", "last", TEXT, "--token", "4").out
    record = lmtool.succeeds("gradients", "last", TEXT, "--token", "4", "--json", "-o", "page.html").json()
    assert list(record) == ["tokens", "target", "loss", "norms"]
    assert record["loss"] != lmtool.succeeds("gradients", "last", TEXT, "--token", "2", "--json").json()["loss"]
    assert all(len(norms) == len(record["tokens"]) for norms in record["norms"].values())
    assert "How far back gradients reach" in Path("page.html").read_text(encoding="utf-8")


def test_a_text_that_is_the_name_of_a_file_is_told(lmtool: CommandLine, run: Path) -> None:
    Path("story").write_text("The baker found a map.")
    for command in (
        ("gradients", "last", "story"),
        ("attention", "last", "story"),
        ("tokenize", "--tokenizer", "last", "--show", "story"),
    ):
        assert "warning: story is" in lmtool.succeeds(*command).err
    assert "warning" not in lmtool.succeeds("gradients", "last", TEXT).err


def test_two_starts(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    small = settings(model_d_model=8, model_context=12, tokenizer_vocab_size=300, training_steps=1)
    lmtool.succeeds("pretrain", corpus, "-r", "gru", *small, "-s", "evaluation.baseline=false", "-q", "-o", "gru")
    asked = ("gradients", "gru", TEXT, "--starts")
    assert "singular value" in lmtool.succeeds(*asked).out
    record = lmtool.succeeds(*asked, "--json", "-o", "starts.html").json()
    assert list(record) == ["tokens", "distances", "rate", "bounds", "largest"]
    assert "How fast the first state is forgotten" in Path("starts.html").read_text(encoding="utf-8")
    assert lmtool.succeeds(*asked, "--json", "--seed", "1").json()["distances"] != record["distances"]
    lmtool.refuses(2, *asked, "--token", "2", words=["--token"])


def test_runs_beside_each_other(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    """Each has the norms that it has alone, under its name."""
    for name, kind in {"gru": "bpe", "lstm": "bpe", "other": "char"}.items():
        small = settings(model_d_model=8, model_context=12, tokenizer_kind=kind, training_steps=1)
        recipe = "lstm" if name == "other" else name
        lmtool.succeeds("pretrain", corpus, "-r", recipe, *small, "-s", "evaluation.baseline=false", "-q", "-o", name)
    record = lmtool.succeeds("gradients", "gru", TEXT, "--beside", "lstm", "--json").json()
    alone = {name: lmtool.succeeds("gradients", name, TEXT, "--json").json() for name in ("gru", "lstm")}
    assert record["norms"] == alone["gru"]["norms"]
    assert record["beside"] == {"lstm": {key: alone["lstm"][key] for key in ("loss", "norms")}}
    lmtool.succeeds("gradients", "gru", TEXT, "--beside", "lstm", "-o", "both.html")
    page = Path("both.html").read_text(encoding="utf-8")
    assert all(name in page for name in ("gru, layer 1", "lstm, layer 1", "lstm, layer 1, cells"))
    lmtool.refuses(2, "gradients", "gru", TEXT, "--beside", "other", "-q", words=["tokenizer"])
    lmtool.refuses(2, "gradients", "gru", TEXT, "--beside", "lstm", "--starts", words=["--beside"])


def test_an_answer_after_its_source(lmtool: CommandLine, home: Path) -> None:
    Path("pairs.tsv").write_text("source\ttarget\n" + "ab\tb\nba\ta\n" * 20, encoding="utf-8")
    small = settings(model_d_model=8, objective_kind="seq2seq", tokenizer_kind="char", training_steps=1)
    lmtool.succeeds("finetune", "pairs.tsv", "-r", "gru", *small, "-s", "training.carry_state=false", "-q", "-o", "gru")
    record = lmtool.succeeds("gradients", "gru", "b", "--source", "ab", "--json").json()
    assert (record["tokens"], record["target"]) == (["[BOS]", "a", "b", "[SEP]"], "b")
    lmtool.refuses(2, "gradients", "gru", "b", "--source", "ab", "--starts", words=["--source"])


def test_a_model_without_sources_refuses_one(lmtool: CommandLine, run: Path) -> None:
    lmtool.refuses(2, "gradients", "last", TEXT, "--source", "A map.", "-q", words=["--source"])
