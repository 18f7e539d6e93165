import asyncio
import threading
import uuid
from pathlib import Path

import pytest
import torch

from verl_gui.compat import shared_memory

WEIGHTS = [("a.weight", torch.arange(12.0).reshape(3, 4)), ("b.bias", torch.tensor([1, 2, 3]))]


def transfer(module, callback, *, bucket_mb=1):
    """Send WEIGHTS from a thread and receive them here, as the trainer's and vLLM's workers do."""
    handle = f"ipc:///tmp/verl-gui-test-{uuid.uuid4().hex}.sock"
    sender = module.BucketedWeightSender(handle, bucket_size_mb=bucket_mb, use_shm=True)
    thread = threading.Thread(
        target=lambda: asyncio.run(sender.async_send_weights(iter(WEIGHTS))), daemon=True
    )
    thread.start()
    receiver = module.BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True)
    try:
        receiver.receive_weights(callback)
    finally:
        if receiver._ack_pending:
            thread.join(timeout=10)
        Path(handle.removeprefix("ipc://")).unlink(missing_ok=True)
    assert not thread.is_alive()


def fail(weights, is_last):
    raise LookupError("the first error")


def test_released_verl_hides_the_first_error(released):
    with pytest.raises(BufferError, match="exported pointers"):
        transfer(released(shared_memory.BRIDGE), fail)


def test_first_error_is_raised(repaired):
    with pytest.raises(LookupError, match="the first error"):
        transfer(repaired(shared_memory.BRIDGE), fail)


def test_kept_weights_stay_right_after_the_memory_is_gone(repaired):
    kept = []
    transfer(repaired(shared_memory.BRIDGE), lambda weights, is_last: kept.extend(weights))
    assert [name for name, _ in kept] == [name for name, _ in WEIGHTS]
    for (_, sent), (_, got) in zip(WEIGHTS, kept, strict=True):
        assert got.dtype == sent.dtype and torch.equal(got, sent)
