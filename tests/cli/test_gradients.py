"""`lmtool gradients`: norms of gradients, and how fast the first state is forgotten."""

from pathlib import Path

from tests.support.cli import CommandLine, settings

TEXT = "The baker found a map at dawn."


def test_runs_beside_each_other_have_the_norms_that_they_have_alone(
    lmtool: CommandLine, home: Path, corpus: Path
) -> None:
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
