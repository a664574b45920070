"""Several labels of a row: probabilities of scores."""

from typing import cast

import numpy as np

from lmtool.recipe.spec.objective import Classification
from lmtool.tasks.multi_label import MultiLabelTask
from lmtool.tokenization.prompt_format import PromptFormat


def test_probabilities_of_any_scores_are_sigmoids() -> None:
    """Also of scores so far from 0 that their exponential is infinite, as on a table that is learnt exactly."""
    spec = Classification(kind="classification", task="multi", labels=("x", "y"))
    task = MultiLabelTask(cast(PromptFormat, None), spec)
    np.testing.assert_allclose(
        task.compute_probabilities(np.array([[-2000.0, 2000.0], [0.0, np.log(3)]])), [[0, 1], [0.5, 0.75]]
    )
