"""In a process of its own: vLLM settles its platform and plugins once."""

import os
import subprocess
import sys
import textwrap

import pytest

SECOND_LOAD = """
import torch
from verl_gui.compat import vllm_name
vllm_name.install()
{plugin}
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
torch.manual_seed(0)
layer = torch.nn.Module()
layer.weight = torch.nn.Parameter(torch.randn(32, 32), requires_grad=False)
layer.bias = None
inputs = torch.randn(4, 32)
for _ in range(3):
    weight = torch.randn(32, 32)
    assert layer.weight.shape == weight.shape, f"shape {{tuple(layer.weight.shape)}}"
    layer.weight.data.copy_(weight)
    UnquantizedLinearMethod().process_weights_after_loading(layer)
    outputs = layer.cpu_linear(inputs, layer.weight, None)
    torch.testing.assert_close(outputs, inputs @ weight.T, rtol=1e-4, atol=1e-4)
"""


def run_python(code: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=110)


@pytest.mark.parametrize(
    "plugin", ["verl_gui.platforms.vllm_cpu:register", "vllm.plugins:load_general_plugins"]
)
def test_weights_are_loaded_again_and_used(plugin):
    """Also through vLLM's own loading of plugins, as in its processes."""
    module, _, function = plugin.partition(":")
    done = run_python(SECOND_LOAD.format(plugin=f"import {module}; {module}.{function}()"))
    assert done.returncode == 0, done.stderr


def test_released_vllm_drops_the_weight():
    done = run_python(SECOND_LOAD.format(plugin=""))
    assert done.returncode == 1 and "AssertionError: shape (0,)" in done.stderr
