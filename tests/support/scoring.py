"""Scores of texts by plain steps: a token after the other."""

import torch

from lmtool.batch import Batch
from lmtool.runs.load import LoadedModel

SHAPES = {
    "decoder": ("model.context=64",),
    "stream": ("model.context=64", "data.split=slice"),
    "recurrent": ("model={kind: recurrent, d_model: 16, context: 16}",),
    "ngram": ("model={kind: ngram, order: 3}", "training.steps=1"),
    "encoder": ("model.context=64", "model.shape=encoder", "objective={kind: masked}"),
}


def next_of(loaded: LoadedModel, row: list[int], source: list[int] | None = None) -> torch.Tensor:
    """Log-probabilities (V) after a row."""
    tokens_BT = torch.tensor([row])
    if source is None:
        batch = Batch(tokens_BT)
    elif loaded.prompt_format.shares_row:
        batch = Batch(torch.tensor([[*source, *row]]), prefix_B=torch.tensor([len(source)]))
    else:
        batch = Batch(tokens_BT, source_BS=torch.tensor([source]))
    with torch.no_grad():
        return loaded.model.logits(loaded.model(batch).hidden_BTD[:, -1])[0].float().log_softmax(-1)


def text_of(context: str, continuation: str) -> str:
    return context + (" " if context.rstrip() == context else "") + continuation


def plain(loaded: LoadedModel, context: str, continuation: str, n: int) -> tuple[list[float], bool]:
    """Log-probabilities of the last n tokens, and whether each is the most probable one."""
    t, is_masked = loaded.tokenizer, loaded.recipe.model.reads == "both"
    opening = [] if is_masked else list(loaded.prompt_format.opening)
    whole = [*opening, *t.encode(text_of(context, continuation))]
    stem = [*opening, *t.encode(context.rstrip())]
    logprobs, greedy = [], True
    for i in range(len(whole) - n, len(whole)):
        if is_masked:
            row = [t.cls_id, *whole[:i], t.mask_id, *whole[i + 1 :], t.sep_id]
            with torch.no_grad():
                hidden_D = loaded.model(Batch(torch.tensor([row]))).hidden_BTD[0, i + 1]
                after = loaded.model.logits(hidden_D).float().log_softmax(-1)
        elif loaded.recipe.model.reads == "source":
            after = next_of(loaded, whole[len(stem) - 1 : i], stem[:-1])
        else:
            after = next_of(loaded, whole[:i])
        logprobs.append(float(after[whole[i]]))
        greedy &= int(after.argmax()) == whole[i]
    return logprobs, greedy
