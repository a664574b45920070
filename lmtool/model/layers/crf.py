"""The linear-chain conditional random field (Lafferty et al. 2001), above scores of tags (Lample et al. 2016).

Shapes: B rows, W words, C tags; P tags of the word before.
"""

import torch
from torch import Tensor, nn


class LinearChainCrf(nn.Module):
    """p(y | x) is proportional to exp(start[y_1] + sum_t s_t[y_t] + sum_t transition[y_t-1, y_t] + end[y_T]).

    All its scores are initially 0, which makes it the softmax of each word.
    """

    def __init__(self, n_tags: int) -> None:
        super().__init__()
        self.start_C = nn.Parameter(torch.zeros(n_tags))
        self.end_C = nn.Parameter(torch.zeros(n_tags))
        self.transition_PC = nn.Parameter(torch.zeros(n_tags, n_tags))

    def log_probs(self, scores_BWC: Tensor, tags_BW: Tensor, keep_BW: Tensor) -> Tensor:
        """Returns the log-probability of the tags of each row (B,); 0 for a row without words.

        keep_BW: False at padding, which is at the end of a row.
        """
        tags_BW = tags_BW.where(keep_BW, 0)
        own_BW = scores_BWC.gather(2, tags_BW[..., None])[..., 0]
        steps_BV = self.transition_PC[tags_BW[:, :-1], tags_BW[:, 1:]]
        last_B1 = (keep_BW.sum(1, keepdim=True) - 1).clamp(min=0)
        path_B = (own_BW * keep_BW).sum(1) + (steps_BV * keep_BW[:, 1:]).sum(1)
        path_B = path_B + self.start_C[tags_BW[:, 0]] + self.end_C[tags_BW.gather(1, last_B1)[:, 0]]
        alpha_BC = self.start_C + scores_BWC[:, 0]
        for score_BC, keep_B in zip(scores_BWC[:, 1:].unbind(1), keep_BW[:, 1:].unbind(1), strict=True):
            next_BC = (alpha_BC[:, :, None] + self.transition_PC).logsumexp(1) + score_BC
            alpha_BC = next_BC.where(keep_B[:, None], alpha_BC)
        log_z_B = (alpha_BC + self.end_C).logsumexp(1)
        return (path_B - log_z_B) * keep_BW[:, 0]

    def decode(self, scores_BWC: Tensor, keep_BW: Tensor) -> Tensor:
        """Returns the most probable tags of each row (B, W), which are arbitrary at padding (Viterbi 1967)."""
        best_BC = self.start_C + scores_BWC[:, 0]
        backpointers: list[Tensor] = []
        same_C = torch.arange(scores_BWC.shape[2], device=scores_BWC.device)
        for score_BC, keep_B in zip(scores_BWC[:, 1:].unbind(1), keep_BW[:, 1:].unbind(1), strict=True):
            next_BC, from_BC = (best_BC[:, :, None] + self.transition_PC).max(1)
            best_BC = (next_BC + score_BC).where(keep_B[:, None], best_BC)
            backpointers.append(from_BC.where(keep_B[:, None], same_C))
        tags = [(best_BC + self.end_C).argmax(1)]
        for from_BC in reversed(backpointers):
            tags.append(from_BC.gather(1, tags[-1][:, None])[:, 0])
        return torch.stack(tags[::-1], 1)
