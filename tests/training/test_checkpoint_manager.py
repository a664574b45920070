"""What the writer of a run does when the processes that share a model cannot save together."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from lmtool.compute.processes import PeerEnded
from lmtool.errors import ResourceError
from lmtool.recipe.spec.training import Checkpointing
from lmtool.training.checkpoint_manager import CheckpointManager, TrainingState
from tests.support import tiny


class Ended:
    """The other process has ended."""

    rank, size = 1, 2

    def gather_texts(self, text: str) -> list[str]:
        raise PeerEnded("another process has ended")


@pytest.mark.parametrize("background", [False, True])
def test_the_end_of_another_process_is_no_warning(background: bool) -> None:
    """Training cannot go on without it, as it does without a checkpoint."""
    with ThreadPoolExecutor(1) as thread:
        manager = CheckpointManager(None, Checkpointing(background=background), thread, peers=Ended())
        told = (event for step in (1, 2) for event in manager.save_checkpoint(step, tiny.model(), {}, TrainingState()))
        with pytest.raises(ResourceError):
            list(told)
