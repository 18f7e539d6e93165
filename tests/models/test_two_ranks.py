"""Two FSDP2 ranks, of which one has no picture where the other has some: no hang, the right gradients."""

import subprocess
import sys
from pathlib import Path

import pytest
from layouts import MODELS

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.mark.e2e
@pytest.mark.timeout(300)
def test_ranks_with_different_mixtures_train_together(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [rank.communicate(timeout=280)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, output in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, output
        assert all(f"{model}: equal" in output for model in MODELS)
