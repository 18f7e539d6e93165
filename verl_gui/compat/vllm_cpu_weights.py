"""vLLM's CPU linear layers prepack their weight and drop it: the next sync finds a parameter of shape (0,).

Keeping the weight is enough: verl calls ``process_weights_after_loading`` after every sync, which packs it
again.
"""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VLLM, Bridge


def _keep_weights(utils: ModuleType) -> None:
    original = utils.dispatch_cpu_unquantized_gemm

    @functools.wraps(original)
    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        original(layer, remove_weight=False)

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm  # type: ignore[attr-defined]


def vllm_runs_on_cpu() -> bool:
    """Whether vLLM picked its CPU platform in this process."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


BRIDGE = Bridge(
    name="vllm-cpu-keeps-weights",
    module="vllm.model_executor.layers.utils",
    requires={"vllm": VLLM},
    twin="patches/vllm/0001-cpu-keep-the-weight-of-prepacked-linear-layers.patch",
    apply=_keep_weights,
    wanted=vllm_runs_on_cpu,
)
