"""Features of a picture that old weights made are never used after a weight update (case B64)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

POLICY = Path(__file__).parents[2] / "recipes/quickstart/policy"
PROGRAM = Path(__file__).with_name("vllm_after_an_update.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Log-probs of the engine and of transformers, before and after the vision tower has changed."""
    updated = tmp_path_factory.mktemp("updated")
    for file in POLICY.iterdir():
        if file.is_file() and file.suffix != ".safetensors":
            (updated / file.name).write_bytes(file.read_bytes())
    generator = torch.Generator().manual_seed(0)
    weights = load_file(POLICY / "model.safetensors")
    for name, weight in weights.items():
        if "visual" in name and weight.is_floating_point():
            noise = torch.randn(weight.shape, generator=generator) * weight.float().std(correction=0)
            weights[name] = weight + (0.5 * noise).to(weight.dtype)
    save_file(weights, updated / "model.safetensors", metadata={"format": "pt"})
    environment = {
        **os.environ,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KEEP_LINEAR_WEIGHTS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, PROGRAM, POLICY, updated],
        env=environment,
        capture_output=True,
        text=True,
        timeout=360,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def difference(found, when):
    engine, truth = map(torch.tensor, found[when])
    return (engine - truth).abs().max().item()


def test_the_engine_agrees_with_the_training_model(found):
    assert difference(found, "old") < 1e-2


def test_without_clearing_old_features_are_used(found):
    assert difference(found, "uncleared") > 0.1
    assert found["uncleared"][0] == pytest.approx(found["old"][0], abs=1e-3)


def test_after_verls_clearing_the_engine_agrees_again(found):
    assert difference(found, "cleared") < 1e-2
