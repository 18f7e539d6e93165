"""Let a failed weight sync end the run with its first error instead of hanging it.

In verl the trainer's worker starts ``update_weights_from_ipc`` in the vLLM worker, then feeds it over a ZMQ
pair and waits for acknowledgements with no limit. If the vLLM worker raises, it acknowledges nothing and
its error sits in a Ray future that nobody looks at. Here both ends wait in short slices; between slices the
sender looks at the future, so the worker's own error is what the trainer raises, and past a limit either
end gives up.

The limit is ``VERL_GUI_WEIGHT_SYNC_TIMEOUT_S`` (seconds without an answer of the other side, default 600).
"""

import asyncio
import functools
import os
import time
from collections.abc import Generator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VERL, Bridge

TIMEOUT_VARIABLE = "VERL_GUI_WEIGHT_SYNC_TIMEOUT_S"
DEFAULT_TIMEOUT_S = 600.0
_SLICE_MS = 100
# The receiver sends its last acknowledgement just before it returns: seen in the other order, it gets this
# long.
_LATE_ACKNOWLEDGEMENT_MS = 1000

_receiver_call: ContextVar[Any] = ContextVar("receiver_call", default=None)


class WeightSyncError(RuntimeError):
    """The weights did not reach the rollout engine."""


def timeout_s() -> float:
    """Seconds that one side of a weight sync waits for the other.

    Raises:
        ValueError: The environment variable is not a positive number.
    """
    text = os.environ.get(TIMEOUT_VARIABLE, "")
    if not text:
        return DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ValueError(f"{TIMEOUT_VARIABLE} must be a positive number of seconds, not {text!r}")
    return seconds


class WatchedSocket:
    """A ZMQ REQ or REP socket whose waits end: on an answer, on the other side's error, or on time-out.

    Args:
        socket: The connected ``zmq.Socket``.
        peer: What is on the other end, for messages.
        limit_s: Longest wait for the other side.
        call: Ray future of the other side's work; its error is raised as it is. None: only the limit applies.
    """

    def __init__(self, socket: Any, *, peer: str, limit_s: float, call: Any = None) -> None:
        self._socket = socket
        self._peer = peer
        self._limit_s = limit_s
        self._call = call

    def send(self, data: bytes) -> None:
        self._wait_until_ready(_pollout())
        self._socket.send(data)

    def send_pyobj(self, obj: Any) -> None:
        self._wait_until_ready(_pollout())
        self._socket.send_pyobj(obj)

    def recv(self) -> bytes:
        self._wait_until_ready(_pollin())
        return bytes(self._socket.recv())

    def recv_pyobj(self) -> Any:
        self._wait_until_ready(_pollin())
        return self._socket.recv_pyobj()

    def bind(self, address: str) -> None:
        self._socket.bind(address)

    def connect(self, address: str) -> None:
        self._socket.connect(address)

    def close(self) -> None:
        self._socket.close()

    def abandon(self) -> None:
        """Close without waiting for what was sent and never taken."""
        self._socket.close(linger=0)

    def _wait_until_ready(self, event: int) -> None:
        deadline = time.monotonic() + self._limit_s
        while not self._socket.poll(_SLICE_MS, event):
            if self._call is not None and _has_ended(self._call):
                if self._socket.poll(_LATE_ACKNOWLEDGEMENT_MS, event):
                    return
                self._fail_with_the_error_of_the_call()
            if time.monotonic() > deadline:
                self.abandon()
                raise WeightSyncError(
                    f"Weight sync: {self._peer} did not answer for {self._limit_s:g} s. Look for its error; "
                    f"set {TIMEOUT_VARIABLE} higher if it is only slow."
                )

    def _fail_with_the_error_of_the_call(self) -> None:
        self.abandon()
        _result_of(self._call)
        raise WeightSyncError(f"Weight sync: {self._peer} returned before it had taken all weights.")


def _pollin() -> int:
    import zmq

    return int(zmq.POLLIN)


def _pollout() -> int:
    import zmq

    return int(zmq.POLLOUT)


def _has_ended(call: Any) -> bool:
    import ray

    done, _ = ray.wait([call], timeout=0)
    return bool(done)


def _result_of(call: Any) -> Any:
    import ray

    return ray.get(call)


def _watch_sockets(transfer: ModuleType) -> None:
    sender, receiver = transfer.BucketedWeightSender, transfer.BucketedWeightReceiver
    init_sender, init_receiver = sender._init_socket, receiver._init_socket

    @functools.wraps(init_sender)
    def _init_sender_socket(self: Any) -> None:
        init_sender(self)
        self.socket = WatchedSocket(
            self.socket, peer="the rollout engine's worker", limit_s=timeout_s(), call=_receiver_call.get()
        )

    @functools.wraps(init_receiver)
    def _init_receiver_socket(self: Any) -> None:
        init_receiver(self)
        self.socket = WatchedSocket(self.socket, peer="the trainer's worker", limit_s=timeout_s())

    sender._init_socket = _init_sender_socket
    receiver._init_socket = _init_receiver_socket


class _BoundedCall:
    """What verl awaits once it has sent all weights: the receiver's result, its error, or time-out."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, None, Any]:
        return self._result().__await__()

    async def _result(self) -> Any:
        limit_s = timeout_s()
        try:
            return await asyncio.wait_for(self._call, limit_s)
        except asyncio.TimeoutError as error:
            raise WeightSyncError(
                f"Weight sync: the rollout engine took all weights but did not finish within {limit_s:g} s. "
                f"If it is only slow, set {TIMEOUT_VARIABLE} higher."
            ) from error


def _remember_the_receiver_call(rollout: ModuleType) -> None:
    adapter = rollout.ServerAdapter
    original = adapter._execute_method

    @functools.wraps(original)
    async def _execute_method(
        self: Any, method: str, non_block: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        result = await original(self, method, non_block, *args, **kwargs)
        if not non_block:
            return result
        # The sender is made in the same asyncio task right after this call and picks the future up.
        _receiver_call.set(result)
        return None if result is None else _BoundedCall(result)

    adapter._execute_method = _execute_method


_TWIN = "patches/verl/0005-weight-sync-raise-the-first-error.patch"

BRIDGES = (
    Bridge(
        name="weight-sync-sockets",
        module="verl.workers.rollout.vllm_rollout.bucketed_weight_transfer",
        requires={"verl": VERL},
        twin=_TWIN,
        apply=_watch_sockets,
    ),
    Bridge(
        name="weight-sync-first-error",
        module="verl.workers.rollout.vllm_rollout.vllm_rollout",
        requires={"verl": VERL},
        twin=_TWIN,
        apply=_remember_the_receiver_call,
    ),
)
