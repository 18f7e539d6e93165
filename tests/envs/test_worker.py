"""The worker without Ray: deadlines, one thread, checked screenshots."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_env import FaultEnv, faulty_task, png

from verl_gui.actions import Action
from verl_gui.envs import EnvFailure, GuiEnv, Observation, StepResult
from verl_gui.envs.worker import GuiEnvWorker, build_env, check_screenshot
from verl_gui.tasks.task import Task

BACKEND = "fault_env:FaultEnv"
SIZE = (64, 48)


def failure_of(png: object, screen: tuple[int, int] = SIZE) -> str:
    with pytest.raises(EnvFailure) as caught:
        check_screenshot(png, screen)
    assert caught.value.kind == "screenshot"
    return caught.value.message


# -- screenshots ---------------------------------------------------------------------------------


def test_a_complete_picture_passes() -> None:
    check_screenshot(png(SIZE), SIZE)
    check_screenshot(png(SIZE) + b"trailing bytes are harmless", SIZE)


@pytest.mark.parametrize("thing", [None, "text", bytearray(png(SIZE)), (1, 2)])
def test_what_is_not_bytes_is_refused(thing: object) -> None:
    assert type(thing).__name__ in failure_of(thing)


@pytest.mark.parametrize("thing", [b"", b"<html>502 Bad Gateway</html>", b"\xff\xd8\xff\xe0JFIF"])
def test_what_is_not_a_png_is_refused(thing: bytes) -> None:
    assert "not a PNG" in failure_of(thing)


def test_every_way_of_cutting_a_picture_short_is_found() -> None:
    picture = png(SIZE)
    for length in range(len(picture)):
        failure_of(picture[:length])


def test_every_damaged_byte_is_found() -> None:
    picture = png(SIZE)
    for at in range(len(picture)):
        failure_of(picture[:at] + bytes([picture[at] ^ 0x40]) + picture[at + 1 :])


def test_another_size_than_announced_is_refused() -> None:
    assert "(32, 32)" in failure_of(png((32, 32)))


def test_a_picture_without_pixels_is_refused() -> None:
    picture = png(SIZE)
    header, at_end = picture[:33], picture[-12:]
    assert "no pixels" in failure_of(header + at_end)


def test_a_picture_that_does_not_begin_with_its_header_is_refused() -> None:
    text = b"\x00\x00\x00\x00tEXt" + zlib.crc32(b"tEXt").to_bytes(4, "big")
    assert "header" in failure_of(png(SIZE)[:8] + text + png(SIZE)[8:])


# -- worker --------------------------------------------------------------------------------------


async def started(**options: object) -> GuiEnvWorker:
    worker = GuiEnvWorker(BACKEND, options)
    assert await worker.start(5.0) == SIZE
    return worker


def test_an_episode() -> None:
    async def episode() -> None:
        worker = await started()
        observation = await worker.reset(faulty_task(), 7, 5.0)
        assert observation.info["seed"] == 7
        result = await worker.step([], 5.0)
        assert result.observation.screenshot == png(SIZE)
        assert await worker.evaluate(5.0) == 1.0
        await worker.close(5.0)
        await worker.close(5.0)

    asyncio.run(episode())


def test_the_fake_keeps_the_contract() -> None:
    assert isinstance(FaultEnv(), GuiEnv)


class ThreadEnv(FaultEnv):
    """Tells which thread it is run by."""

    threads: list[int] = []  # noqa: RUF012 - shared on purpose

    def __init__(self) -> None:
        super().__init__()
        self.threads.append(threading.get_ident())

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        self.threads.append(threading.get_ident())
        return super().reset(task, seed=seed)

    def close(self) -> None:
        self.threads.append(threading.get_ident())


def test_one_thread_does_everything() -> None:
    async def episodes() -> None:
        worker = GuiEnvWorker(f"{__name__}:ThreadEnv", {})
        await worker.start(5.0)
        await worker.reset(faulty_task(), None, 5.0)
        await worker.start(5.0)
        await worker.close(5.0)

    ThreadEnv.threads.clear()
    asyncio.run(episodes())
    assert len(ThreadEnv.threads) == 5
    assert set(ThreadEnv.threads) != {threading.get_ident()}
    assert len(set(ThreadEnv.threads)) == 1


@pytest.mark.parametrize(
    ("fault", "at", "kind"),
    [
        ("raise", "reset", "reset"),
        ("raise", "step", "step"),
        ("bug", "reset", "reset"),
        ("bug", "step", "step"),
        ("bug", "evaluate", "evaluate"),
        ("half_png", "reset", "screenshot"),
        ("no_png", "step", "screenshot"),
        ("wrong_size", "step", "screenshot"),
        ("hang", "reset", "timeout"),
        ("hang", "step", "timeout"),
        ("hang", "evaluate", "timeout"),
    ],
)
def test_every_fault_becomes_a_failure_of_its_kind(fault: str, at: str, kind: str) -> None:
    async def episode() -> None:
        worker = await started()
        await worker.reset(faulty_task(fault, at=at), None, 0.2)
        await worker.step([], 0.2)
        await worker.evaluate(0.2)

    with pytest.raises(EnvFailure) as caught:
        asyncio.run(episode())
    assert caught.value.kind == kind


@pytest.mark.parametrize("score", [-0.1, 1.5, float("nan"), "none"])
def test_a_score_outside_its_range_is_no_score(score: object) -> None:
    async def episode() -> None:
        worker = await started()
        await worker.reset(Task("t", config=({"type": "fault", "parameters": {"score": score}},)), None, 5.0)
        await worker.evaluate(5.0)

    with pytest.raises(EnvFailure) as caught:
        asyncio.run(episode())
    assert caught.value.kind == "evaluate"


def test_a_hung_environment_still_answers_ping_and_refuses_work() -> None:
    async def episode() -> None:
        worker = await started()
        assert (await worker.ping())["call"] is None
        await worker.reset(faulty_task("hang"), None, 5.0)
        with pytest.raises(EnvFailure, match="took longer than"):
            await worker.step([], 0.1)
        began = time.monotonic()
        sign = await worker.ping()
        assert sign["call"] == "step" and sign["call_s"] >= 0.1
        with pytest.raises(EnvFailure, match="has been in step") as caught:
            await worker.reset(faulty_task(), None, 60.0)
        assert caught.value.kind == "timeout"
        assert time.monotonic() - began < 1.0, "refused at once, not after another deadline"

    asyncio.run(episode())


def test_start_replaces_the_environment_in_the_same_process() -> None:
    async def episodes() -> None:
        worker = await started(child="30")
        first = await worker.reset(faulty_task("raise"), None, 5.0)
        with pytest.raises(EnvFailure):
            await worker.step([], 5.0)
        await worker.start(5.0)
        second = await worker.reset(faulty_task(), None, 5.0)
        assert first.info["pid"] == second.info["pid"]
        assert first.info["serial"] != second.info["serial"]
        await worker.close(5.0)

    asyncio.run(episodes())


def test_calls_without_an_environment_say_so() -> None:
    async def calls() -> None:
        worker = GuiEnvWorker(BACKEND, {})
        with pytest.raises(EnvFailure, match=r"start\(\)") as caught:
            await worker.step([], 5.0)
        assert caught.value.kind == "dead"

    asyncio.run(calls())


def test_an_environment_that_cannot_be_built_is_a_failure() -> None:
    async def start(options: dict[str, object]) -> None:
        await GuiEnvWorker(BACKEND, options).start(0.2)

    for options, kind in (
        ({"start_fault": "raise"}, "reset"),
        ({"start_fault": "hang"}, "timeout"),
        ({"no_such_option": 1}, "reset"),
    ):
        with pytest.raises(EnvFailure) as caught:
            asyncio.run(start(options))
        assert caught.value.kind == kind


def test_a_factory_of_ones_own_can_be_named() -> None:
    env = build_env(BACKEND, {"step_s": 0.0})
    assert isinstance(env, FaultEnv)


def test_the_worker_is_light_to_import() -> None:
    script = "import sys, verl_gui.envs.worker; print({'torch', 'verl', 'ray', 'vllm'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


# -- ahead of time, and at rest --------------------------------------------------------------------


def test_a_prepared_reset_is_used_once_and_only_for_its_task(tmp_path: Path) -> None:
    log = tmp_path / "resets"

    async def episodes() -> list[int]:
        worker = await started(log=str(log))
        counts = []
        task, other = faulty_task(), faulty_task("raise", at="evaluate")
        await worker.prepare(task, 7, 5.0)
        for instance in ((task, 7), (task, 7)):
            assert (await worker.reset(*instance, 5.0)).info["seed"] == 7
            counts.append(len(log.read_text().splitlines()))
        await worker.prepare(task, 7, 5.0)
        await worker.reset(other, 7, 5.0)
        counts.append(len(log.read_text().splitlines()))
        return counts

    assert asyncio.run(episodes()) == [1, 2, 4]


def test_a_reset_waits_for_its_preparation() -> None:
    async def episode() -> None:
        worker = await started(reset_s=0.3)
        preparing = asyncio.create_task(worker.prepare(faulty_task(), 7, 5.0))
        await asyncio.sleep(0.05)
        assert (await worker.reset(faulty_task(), 7, 5.0)).info["seed"] == 7
        await preparing

    asyncio.run(episode())


def test_a_failed_preparation_is_told_to_both() -> None:
    async def episode() -> None:
        worker = await started()
        task = faulty_task("raise", at="reset")
        for call in (worker.prepare(task, 7, 5.0), worker.reset(task, 7, 5.0)):
            with pytest.raises(EnvFailure, match="asked to fail"):
                await call

    asyncio.run(episode())


class RestingEnv(FaultEnv):
    """Notes its calls, with ``pause`` among them."""

    calls: list[str] = []  # noqa: RUF012 - shared on purpose

    def step(self, actions: Sequence[Action]) -> StepResult:
        self.calls.append("step")
        return super().step(actions)

    def pause(self) -> None:
        self.calls.append("pause")


def test_the_environment_rests_between_calls_if_it_can() -> None:
    async def episode() -> None:
        worker = GuiEnvWorker(f"{__name__}:RestingEnv", {}, pause=True)
        await worker.start(5.0)
        await worker.reset(faulty_task(), None, 5.0)
        for _ in range(2):
            await worker.step([], 5.0)
        await worker.close(5.0)
        with pytest.raises(EnvFailure, match="cannot pause"):
            await GuiEnvWorker(BACKEND, {}, pause=True).start(5.0)

    RestingEnv.calls.clear()
    asyncio.run(episode())
    assert RestingEnv.calls == ["pause", "step", "pause", "step", "pause"]


def test_observations_say_when_and_how_large() -> None:
    before = time.time()
    observation = Observation(png(SIZE))
    assert observation.size == SIZE and before <= observation.timestamp <= time.time()
    assert observation == Observation(png(SIZE), timestamp=0.0)  # the same picture
