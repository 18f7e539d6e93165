"""One rank of a training step under FSDP2 on gloo: ``python two_ranks.py RANK STORE``.

The two ranks hold different mixtures at the same time. Each checks its shard of the gradients against a
training step without FSDP that sees all micro-batches of both.
"""

from __future__ import annotations

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from layouts import MODELS
from tiny_models import forward, tiny_model
from torch.distributed.device_mesh import init_device_mesh
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.fsdp_utils import apply_fsdp2

MICRO_BATCHES = (  # of rank 0, of rank 1
    (["image"], ["text"]),
    (["text", "short"], ["images", "text"]),
    (["clip"], ["short"]),
    (["clip", "image"], ["images"]),
    (["text"], ["short"]),
)


def step(model: torch.nn.Module, micro_batches: list[list[str]]) -> None:
    """Old log-probs without gradients, then forward and backward, of each micro-batch."""
    for names in micro_batches:
        with torch.no_grad():
            forward(model, names)
    for names in micro_batches:
        sum(logits.square().sum() for logits in forward(model, names)).backward()


def check(name: str, rank: int) -> None:
    whole, sharded = tiny_model(name), tiny_model(name)
    apply_monkey_patch(whole, use_remove_padding=False)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    apply_fsdp2(sharded, {"mesh": mesh, "reshard_after_forward": True}, {})
    step(sharded, [of_both[rank] for of_both in MICRO_BATCHES])
    step(whole, [names for of_both in MICRO_BATCHES for names in of_both])
    for (of, parameter), (_, expected) in zip(
        sharded.named_parameters(), whole.named_parameters(), strict=True
    ):
        total = parameter.grad.full_tensor() * 2  # FSDP averages over the ranks
        torch.testing.assert_close(total, expected.grad, atol=1e-3, rtol=1e-3, msg=f"gradient of {of}")
    print(f"{name}: equal")


def main() -> None:
    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    for name in MODELS:
        check(name, rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
