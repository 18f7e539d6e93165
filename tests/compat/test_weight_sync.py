import asyncio
import threading
import time
import uuid
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from verl_gui.compat import shared_memory, weight_sync
from verl_gui.compat.weight_sync import TIMEOUT_VARIABLE, WeightSyncError, timeout_s

SOCKETS, FIRST_ERROR = weight_sync.BRIDGES
WEIGHTS = [("a.weight", torch.ones(4))]


class LostWorker(RuntimeError):
    """The error that the rollout engine's worker ended with."""


@pytest.fixture
def transfer_module(request, repaired, monkeypatch):
    """The transfer module whose sender looks at a call; the call is a local Future instead of a Ray one."""
    monkeypatch.setattr(weight_sync, "_has_ended", lambda call: call.done())
    monkeypatch.setattr(weight_sync, "_result_of", lambda call: call.result(timeout=0))
    monkeypatch.setenv(TIMEOUT_VARIABLE, "1.5")
    module = repaired(SOCKETS)
    if hasattr(module, "WEIGHT_SYNC_TIMEOUT_S"):  # the patch reads its variable at import
        module.WEIGHT_SYNC_TIMEOUT_S = 1.5
    shared_memory.BRIDGE.apply(module)
    return module


def send(module, handle, call=None):
    """One sync of WEIGHTS as in the trainer; the bridge finds the call in the task's context."""
    options = {}
    if hasattr(module, "WEIGHT_SYNC_TIMEOUT_S") and call is not None:
        options["raise_if_receiver_ended"] = lambda: call.done() and (call.result(), True)[1]

    async def run():
        weight_sync._receiver_call.set(call)
        sender = module.BucketedWeightSender(handle, bucket_size_mb=1, use_shm=True, **options)
        await sender.async_send_weights(iter(WEIGHTS))

    asyncio.run(run())


@pytest.fixture
def handle():
    socket = Path(
        f"/tmp/verl-gui-test-{uuid.uuid4().hex}.sock"
    )  # at most 107 bytes: tmp_path may be too long
    yield f"ipc://{socket}"
    socket.unlink(missing_ok=True)


def ended_call(error=None):
    call = Future()
    if error is None:
        call.set_result(None)
    else:
        call.set_exception(error)
    return call


def test_released_sender_waits_for_ever(released, handle):
    thread = threading.Thread(target=send, args=(released(SOCKETS), handle), daemon=True)
    thread.start()
    thread.join(timeout=3)
    assert thread.is_alive()


def test_worker_that_never_connects_ends_the_sync_with_its_own_error(transfer_module, handle):
    start = time.monotonic()
    with pytest.raises(LostWorker, match="no space left"):
        send(transfer_module, handle, ended_call(LostWorker("no space left")))
    assert time.monotonic() - start < 1.4  # because it looked, not because time was up


def test_worker_that_fails_on_a_bucket_ends_the_sync_with_its_own_error(transfer_module, handle):
    call = Future()

    def receive():
        receiver = transfer_module.BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True)
        try:
            receiver.receive_weights(fail)
        except LostWorker as error:
            call.set_exception(error)

    def fail(weights, is_last):
        raise LostWorker("shape (0,)")

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    with pytest.raises(LostWorker, match=r"shape \(0,\)"):
        send(transfer_module, handle, call)
    thread.join(timeout=5)


def test_worker_that_returns_early_is_an_error(transfer_module, handle):
    with pytest.raises(RuntimeError, match="before it had taken all weights"):
        send(transfer_module, handle, ended_call())


def test_silent_worker_is_given_up_in_bounded_time(transfer_module, handle):
    start = time.monotonic()
    with pytest.raises((WeightSyncError, TimeoutError), match=r"did not answer for 1\.5 s"):
        send(transfer_module, handle, Future())
    assert 1.4 < time.monotonic() - start < 10


def test_receiver_gives_up_on_a_dead_sender(transfer_module, handle):
    receiver = transfer_module.BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True)
    with pytest.raises((WeightSyncError, TimeoutError), match=r"did not answer for 1\.5 s"):
        receiver.receive_weights(lambda weights, is_last: None)


def test_good_sync_delivers_the_weights(transfer_module, handle):
    call, got = Future(), []

    def receive():
        receiver = transfer_module.BucketedWeightReceiver(handle, torch.device("cpu"), use_shm=True)
        receiver.receive_weights(lambda weights, is_last: got.extend(weights))
        call.set_result(None)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    send(transfer_module, handle, call)
    thread.join(timeout=5)
    assert [(name, value.tolist()) for name, value in got] == [("a.weight", [1.0] * 4)]


class Adapter:
    """Stands for verl's ServerAdapter: starts the receiver's call and returns its future."""

    def __init__(self, call):
        self.call = call

    async def _execute_method(self, method, non_block=False, timeout=None, args=(), kwargs=None):
        return self.call


@pytest.fixture
def adapter_class():
    class Bridged(Adapter):
        _execute_method = Adapter._execute_method

    FIRST_ERROR.apply(type("rollout", (), {"ServerAdapter": Bridged}))
    return Bridged


def test_call_is_handed_to_the_sender_and_still_awaited(adapter_class):
    async def run():
        call = asyncio.get_running_loop().create_future()
        waited_for = await adapter_class(call)._execute_method("update_weights_from_ipc", non_block=True)
        assert weight_sync._receiver_call.get() is call
        call.set_exception(LostWorker("while packing"))
        await waited_for

    with pytest.raises(LostWorker, match="while packing"):
        asyncio.run(run())


def test_worker_that_hangs_after_the_last_bucket_is_given_up(adapter_class, monkeypatch):
    monkeypatch.setenv(TIMEOUT_VARIABLE, "0.2")

    async def run():
        call = asyncio.get_running_loop().create_future()
        await (await adapter_class(call)._execute_method("update_weights_from_ipc", non_block=True))

    with pytest.raises(WeightSyncError, match=r"did not finish within 0\.2 s"):
        asyncio.run(run())


def test_rank_without_a_server_has_no_call(adapter_class):
    async def run():
        assert await adapter_class(None)._execute_method("update_weights_from_ipc", non_block=True) is None
        assert weight_sync._receiver_call.get() is None

    asyncio.run(run())


def test_blocking_calls_are_left_alone(adapter_class):
    async def run():
        return await adapter_class("result")._execute_method("clear_kv_cache")

    assert asyncio.run(run()) == "result"


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan"])
def test_time_limit_must_be_a_positive_number(monkeypatch, text):
    monkeypatch.setenv(TIMEOUT_VARIABLE, text)
    with pytest.raises(ValueError, match=TIMEOUT_VARIABLE):
        timeout_s()


def test_time_limit_has_a_default(monkeypatch):
    monkeypatch.delenv(TIMEOUT_VARIABLE, raising=False)
    assert timeout_s() == 600
