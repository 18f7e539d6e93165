"""The script that makes the quickstart's policy: a short build, twice, gives the same weights."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoProcessor

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "recipes/quickstart/build_policy.py"

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(600)]


def build(folder, out, *arguments):
    command = [sys.executable, SCRIPT, "--episodes", "4", "--steps", "2", "--recording", folder / "recording"]
    subprocess.run([*command, "--out", folder / out, *arguments], check=True, timeout=300)
    return load_file(folder / out / "model.safetensors"), json.loads(
        (folder / out / "training.json").read_text()
    )


def test_a_build_is_reproducible_and_goes_on_from_a_checkpoint(tmp_path):
    weights, told = build(tmp_path, "first")
    assert list(told["parts"]) == ["ground", "habit", "aim"]
    again, _ = build(tmp_path, "again")  # from the same recording
    assert weights.keys() == again.keys()
    assert all(torch.equal(weights[name], again[name]) for name in weights)

    later, told = build(tmp_path, "later", "--begin-at", "aim", "--checkpoint", tmp_path / "first")
    assert list(told["parts"]) == ["aim"] and not all(torch.equal(weights[n], later[n]) for n in weights)


def test_the_shipped_policy_is_what_the_script_makes():
    shipped = json.loads((ROOT / "recipes/quickstart/policy/training.json").read_text())
    assert list(shipped["parts"])[-1] == "aim" and shipped["arguments"]["seed"] == 0
    processor = AutoProcessor.from_pretrained(ROOT / "recipes/quickstart/policy")
    assert processor.tokenizer.convert_tokens_to_ids("<|im_end|>") is not None
