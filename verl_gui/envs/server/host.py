"""The process of one environment: answers calls on a socket until that closes.

Started by :mod:`.hosted` as ``python -m verl_gui.envs.server.host FD``. It imports neither HTTP nor Ray.
"""

from __future__ import annotations

import logging
import socket
import struct
import sys
from typing import BinaryIO

from verl_gui.envs.base import EnvFailure, FailureKind, GuiEnv, PausableEnv
from verl_gui.envs.remote import wire
from verl_gui.envs.worker import build_env, check_screenshot

logger = logging.getLogger(__name__)

LENGTH = struct.Struct(">I")
"""In front of every message: its length in bytes."""


def answer_calls(stream: BinaryIO) -> None:
    """Build the environment of the first call, then answer the others until the stream ends."""
    env: GuiEnv | None = None
    try:
        while (data := _read(stream)) is not None:
            question = wire.decode(data, wire.StartCall | wire.EnvCall)
            answer: wire.Answer
            try:
                if isinstance(question, wire.StartCall):
                    env = build_env(question.backend, question.options)
                    answer = wire.Started((int(env.screen[0]), int(env.screen[1])))
                elif env is None:
                    raise EnvFailure("dead", "the environment is not started")
                else:
                    answer = _do(env, question)
                data = wire.encode(answer)
            except Exception as error:  # handed to the client, as a failure of the environment
                if not isinstance(error, EnvFailure | RuntimeError):
                    logger.exception("the environment raised")
                data = wire.encode(wire.failure_of(error, _kind(question)))
            stream.write(LENGTH.pack(len(data)) + data)
            stream.flush()
    finally:
        if env is not None:
            env.close()


def _do(env: GuiEnv, question: wire.EnvCall) -> wire.Answer:
    if isinstance(question, wire.ResetCall):
        observation = env.reset(wire.task_of(question), seed=question.seed)
        check_screenshot(observation.screenshot, env.screen)
        return wire.seen(observation)
    if isinstance(question, wire.StepCall):
        result = env.step(question.actions)
        check_screenshot(result.observation.screenshot, env.screen)
        return wire.seen(result.observation, result)
    if isinstance(question, wire.EvaluateCall):
        score = float(env.evaluate())
        if not 0.0 <= score <= 1.0:
            raise EnvFailure("evaluate", f"score must be in [0, 1], got {score}")
        return wire.Scored(score)
    if isinstance(env, PausableEnv):
        env.pause()
        return wire.Done()
    raise EnvFailure("step", "this backend cannot pause; set gui.env.pause=false")


def _kind(question: wire.StartCall | wire.EnvCall) -> FailureKind:
    if isinstance(question, wire.StepCall | wire.PauseCall):
        return "step"
    return "evaluate" if isinstance(question, wire.EvaluateCall) else "reset"


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    data = stream.read(length)
    return data if len(data) == length else None


if __name__ == "__main__":
    logging.basicConfig(format="%(levelname)s environment: %(message)s", level=logging.WARNING)
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rwb") as calls:
        answer_calls(calls)  # type: ignore[arg-type]
