"""What a recipe needs of its machines, estimated from its configuration alone.

Pure arithmetic on a composed configuration; :mod:`verl_gui.launch.recipe_check` compares it with a machine.
The estimates are meant to be right within a factor of two, on the high side.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MIB, _GIB = 1024**2, 1024**3
_PATCH_PIXELS = 28 * 28  # of one image token: 2 x 2 merged patches of 14 x 14
_VALUES_PER_TOKEN = 4 * 1176  # numbers of ``pixel_values`` behind one image token
_PNG_BYTES_PER_PIXEL = 0.5  # of a busy desktop; an empty one has a tenth
_ROW_BYTES_PER_TOKEN = 48  # ids, masks, three positions, log-probs
_ROW_COPIES = 3  # in the agent loop, in the queue, in the trainer
_STATE_BYTES = 16  # a parameter of an offloaded actor: fp32 weight, gradient and two moments of Adam
_HALF = 2  # bytes of a number in the key-value cache
# Layers and key-value heads (of 128 numbers) of Qwen2.5-VL 3B, 7B and 72B, for sizes up to a limit.
_QWEN_SHAPES = ((5e9, (36, 2)), (2e10, (28, 4)), (float("inf"), (80, 8)))

# Memory of one environment, in bytes (measured, or the limit it is given).
_ENV_BYTES = {
    "desktop": 500 * _MIB,  # with a browser; 60 MiB without
    "miniwob": 400 * _MIB,
    "docker": 2 * _GIB,
    "osworld-desktop-env": 4 * _GIB,
    "osworld": 200 * _MIB,
    "remote": 100 * _MIB,
}
_WORKER_BYTES = 150 * _MIB  # the Python process around each


@dataclass(frozen=True)
class ModelShape:
    """What memory depends on.

    Attributes:
        parameters: their number; None when it cannot be told.
        kv_bytes_per_token: keys and values of one token, over all layers.
        source: where this comes from.
    """

    parameters: float | None
    kv_bytes_per_token: int
    source: str


@dataclass(frozen=True)
class RecipeNeeds:
    """Estimates for one recipe; bytes unless said otherwise.

    Attributes:
        gpus: GPUs of a node; 0 on CPU.
        nodes: nodes with GPUs.
        backend: of the environments.
        resource: Ray resource that environments take, None when they spread over all nodes.
        envs: environments at once, spares included, over all nodes.
        env_memory: of one environment and its worker.
        image_tokens: of one screenshot.
        trajectory_tokens: of the longest sequence.
        trajectory_memory: one trajectory in host memory, screenshots compressed.
        batch_memory: all trajectories of a step in host memory.
        pixel_memory: ``pixel_values`` of one longest trajectory, in the process that trains on it.
        kv_memory: key-value cache of one longest sequence.
        actor_memory: weights and optimiser state that one node holds in host memory while vLLM generates.
        run_bytes: disk for the trajectories and checkpoints of the run.
    """

    gpus: int
    nodes: int
    backend: str
    resource: str | None
    envs: int
    env_memory: int
    image_tokens: int
    trajectory_tokens: int
    trajectory_memory: int
    batch_memory: int
    pixel_memory: int
    kv_memory: int
    actor_memory: int
    run_bytes: int
    model: ModelShape

    @property
    def envs_per_node(self) -> int:
        """Environments of a node when they spread evenly over the nodes with GPUs."""
        return -(-self.envs // self.nodes)

    @property
    def node_memory(self) -> int:
        """Host memory of the node that runs the trainer, environments included unless placed by resource."""
        envs = 0 if self.resource else self.envs_per_node * self.env_memory
        workers = max(1, self.gpus) * self.pixel_memory
        return self.batch_memory + self.actor_memory + workers + envs + 4 * _GIB


def recipe_needs(config: Mapping[str, Any]) -> RecipeNeeds:
    """Estimates from a composed configuration, resolved to plain mappings.

    Raises:
        KeyError: a key of verl's configuration or of ``gui:`` is missing.
    """
    gui, data, trainer = config["gui"], config["data"], config["trainer"]
    agent, env = gui["rollout"], gui["env"]
    rollout, actor = config["actor_rollout_ref"]["rollout"], config["actor_rollout_ref"]["actor"]
    width, height = env.get("options", {}).get("screen", (1280, 720))
    pixels = min(max(width * height, agent.get("min_pixels", 3136)), agent.get("max_pixels", 2116800))
    image_tokens = -(-pixels // _PATCH_PIXELS)
    steps = agent.get("max_steps", 15)
    images = min(agent.get("history_images", 15), steps)
    tokens = data["max_prompt_length"] + data["max_response_length"]
    trajectory = int((steps + 1) * width * height * _PNG_BYTES_PER_PIXEL) + tokens * _ROW_BYTES_PER_TOKEN
    rows = data["train_batch_size"] * rollout["n"]
    model = model_shape(str(config["actor_rollout_ref"]["model"]["path"]))
    on_gpu = trainer["device"] != "cpu"
    offloaded = on_gpu and actor["fsdp_config"].get("optimizer_offload")
    state = int((model.parameters or 0) * _STATE_BYTES)
    kept = trainer.get("max_actor_ckpt_to_keep") or 1
    checkpoints = kept * state if trainer.get("save_freq", -1) > 0 else 0
    backend = env["backend"]
    return RecipeNeeds(
        gpus=trainer["n_gpus_per_node"] if on_gpu else 0,
        nodes=trainer["nnodes"],
        backend=backend,
        resource=env.get("resource"),
        envs=env.get("num_envs", 8) + env.get("spares", 0),
        env_memory=_ENV_BYTES.get(backend, 500 * _MIB) + _WORKER_BYTES,
        image_tokens=image_tokens,
        trajectory_tokens=tokens,
        trajectory_memory=trajectory,
        batch_memory=rows * trajectory * _ROW_COPIES,
        pixel_memory=images * image_tokens * _VALUES_PER_TOKEN * 4,
        kv_memory=tokens * model.kv_bytes_per_token,
        actor_memory=state // trainer["nnodes"] if offloaded else 0,
        run_bytes=checkpoints + 200 * trajectory,
        model=model,
    )


def model_shape(path: str) -> ModelShape:
    """From ``config.json`` of a local checkpoint; by the size in its name otherwise."""
    try:
        found = json.loads((Path(path) / "config.json").read_text(encoding="utf-8"))
    except OSError:
        size = re.search(r"(\d+(?:\.\d+)?)\s*B\b", path, re.IGNORECASE)
        number = float(size[1]) * 1e9 if size else None
        layers, heads = next(shape for limit, shape in _QWEN_SHAPES if (number or 7e9) < limit)
        source = "the size in its name" if size else "a guess: 7B"
        return ModelShape(number, _HALF * 2 * layers * heads * 128, source)
    text = {**found, **(found.get("text_config") or {})}
    hidden, layers, heads = text["hidden_size"], text["num_hidden_layers"], text["num_attention_heads"]
    kv_heads = text.get("num_key_value_heads") or heads
    width = text.get("head_dim") or hidden // heads
    attention = hidden * width * (2 * heads + 2 * kv_heads)
    layer = attention + 3 * hidden * text["intermediate_size"]
    embeddings = text["vocab_size"] * hidden * (1 if text.get("tie_word_embeddings") else 2)
    parameters = float(layers * layer + embeddings)
    return ModelShape(parameters, _HALF * 2 * layers * kv_heads * width, "its config.json")
