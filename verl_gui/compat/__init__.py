"""Every run-time change to verl, vLLM and transformers: a file each, guarded, a twin in ``patches/``."""

from verl_gui.compat import (
    attention,
    batch_metrics,
    encoded_images,
    fsdp_engine,
    process_group,
    processor_positions,
    ragged_positions,
    shared_memory,
    split_trajectories,
    text_only_batch,
    vllm_cpu_weights,
    vllm_idle_wait,
    vllm_name,
    weight_sync,
)
from verl_gui.compat._guard import Bridge, CompatError, install
from verl_gui.compat._imports import after_import

__all__ = [
    "VERL_BRIDGES",
    "VLLM_BRIDGES",
    "Bridge",
    "CompatError",
    "after_import",
    "install_all",
    "install_for_vllm",
]

VERL_BRIDGES: tuple[Bridge, ...] = (
    process_group.BRIDGE,
    fsdp_engine.BRIDGE,
    shared_memory.BRIDGE,
    *weight_sync.BRIDGES,
    text_only_batch.BRIDGE,
    processor_positions.BRIDGE,
    ragged_positions.BRIDGE,
    attention.BRIDGE,
    split_trajectories.BRIDGE,
    encoded_images.BRIDGE,
    batch_metrics.BRIDGE,
)
VLLM_BRIDGES: tuple[Bridge, ...] = (vllm_cpu_weights.BRIDGE, vllm_idle_wait.BRIDGE)


def install_all() -> None:
    """Arm every bridge; imports neither verl nor vLLM nor torch."""
    vllm_name.install()
    for bridge in VERL_BRIDGES:
        install(bridge)
    install_for_vllm()


def install_for_vllm() -> None:
    """Arm the bridges that a vLLM process needs, with or without verl in it."""
    for bridge in VLLM_BRIDGES:
        install(bridge)
