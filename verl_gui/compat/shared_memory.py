"""verl's weight receiver hands out views into shared memory when the target device is the CPU.

``tensor.to("cpu")`` copies nothing there. Closing the shared memory then raises ``BufferError: cannot close
exported pointers exist``: after a sync if the engine kept a view, and after an error in the engine always,
which hides that first error. On CPU the receiver's buffer therefore gives out copies.
"""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VERL, Bridge, verl_runs_on_cpu


class CopyingBuffer:
    """A byte buffer whose slices are copies: nothing that comes out of it refers to its memory."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def __getitem__(self, index: slice) -> Any:
        return self._buffer[index].clone()


def _hand_out_copies(transfer: ModuleType) -> None:
    receiver = transfer.BucketedWeightReceiver
    original = receiver._init_buffer

    @functools.wraps(original)
    def _init_buffer(self: Any) -> None:
        original(self)
        if self.use_shm:
            self.buffer = CopyingBuffer(self.buffer)

    receiver._init_buffer = _init_buffer


BRIDGE = Bridge(
    name="shared-memory-copies",
    module="verl.workers.rollout.vllm_rollout.bucketed_weight_transfer",
    requires={"verl": VERL},
    twin="patches/verl/0004-weight-receiver-copy-out-of-shared-memory.patch",
    apply=_hand_out_copies,
    wanted=verl_runs_on_cpu,
)
