"""Every test starts from the same random state, on one thread, and none is timed."""

import pytest
import torch
from hypothesis import settings

settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")
torch.set_num_threads(1)  # the tests run side by side, one process for each core


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
