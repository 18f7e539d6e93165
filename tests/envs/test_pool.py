"""The pool on a real Ray: real processes that hang, die and lie."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from env_cases import cases
from fault_env import FOREVER_S, faulty_task
from server_tools import HERE, serving

from verl_gui.envs import EnvFailure
from verl_gui.envs import pool as pool_module
from verl_gui.tasks.task import Task

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

from verl_gui.envs.pool import EnvPool, EnvPoolConfig, LeasedEnv, get_env_pool, pool_metrics  # noqa: E402
from verl_gui.envs.pool_actor import PING_TIMEOUT_S  # noqa: E402
from verl_gui.rollout.stall import RolloutStalled, WorkerWatch  # noqa: E402

pytestmark = pytest.mark.e2e

BACKEND = "fault_env:FaultEnv"
PATIENCE_S = 60.0
CHILD = f"3600.{os.getpid()}"  # argument of the environments' own processes, to tell them from others'


def own_processes() -> list[int]:
    """The processes started by the environments of this test run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cmdline").read_bytes().split(b"\0")[:2] == [b"sleep", CHILD.encode()]:
                    found.append(int(entry.name))
            except OSError:  # ended meanwhile
                continue
    return found


def settings(backend: str = BACKEND, **changes: Any) -> EnvPoolConfig:
    defaults = {"num_envs": 1, "options": {"child": CHILD}, "heartbeat_s": 1.0, "step_timeout_s": 2.0}
    return EnvPoolConfig(backend, **{**defaults, **changes})


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s"
        await asyncio.sleep(0.05)


async def until_full(pool: EnvPool, *failures: str) -> None:
    """Wait until these failures, and no others, have been counted and all environments work again.

    Giving back is not waited for, so a pool may still look full right after a failure.
    """
    counted: Counter[str] = Counter()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        numbers = await pool.metrics()
        for kind in numbers:
            if kind.startswith("env/failures/"):
                counted[kind.removeprefix("env/failures/")] += int(numbers[kind])
        full = numbers["env/workers"] == pool.config.num_envs + pool.config.spares
        if full and counted.total() >= len(failures):
            assert counted == Counter(failures)
            return
        assert time.monotonic() < deadline, f"not full within {PATIENCE_S} s: {numbers}, {counted}"
        await asyncio.sleep(0.05)


async def play(pool: EnvPool, task: Task | None = None) -> dict[str, Any]:
    """One trajectory; the reset's info."""
    async with pool.lease(timeout_s=PATIENCE_S) as env:
        observation = await env.reset(task or faulty_task(), seed=1)
        await env.step([])
        assert await env.evaluate() == 1.0
        return observation.info


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A Ray of two nodes, the second with room for two desktops; nothing of the environments may be left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        memory = {"object_store_memory": 80 << 20}
        cluster = Cluster(True, head_node_args={"num_cpus": 2, "include_dashboard": False, **memory})
        cluster.add_node(num_cpus=0, resources={"desktop": 2}, **memory)
        ray.init(cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()
    asyncio.run(until(lambda: not own_processes()))


@pytest.fixture(scope="module")
def cluster(nodes: Cluster) -> str:
    """Address of the Ray."""
    return nodes.address


@pytest.fixture(scope="module")
def resets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File in which the environments of ``four`` note their resets."""
    return tmp_path_factory.mktemp("four") / "resets"


@pytest.fixture(scope="module")
def four(cluster: str, resets: Path) -> EnvPool:
    """Four environments, used by most tests; each test leaves it full."""
    options = {"child": CHILD, "log": str(resets)}
    pool = get_env_pool(settings(num_envs=4, max_reset_retries=1, options=options), name="four")
    asyncio.run(until_full(pool))
    return pool


@pytest.fixture
def closing(cluster: str) -> Iterator[Callable[..., EnvPool]]:
    """Makes pools that are closed after the test."""
    pools = []

    def make(**changes: Any) -> EnvPool:
        pools.append(get_env_pool(settings(**changes), name=f"pool-{uuid.uuid4().hex[:6]}"))
        return pools[-1]

    yield make
    for pool in pools:
        asyncio.run(pool.close())


def test_an_episode_is_counted(four: EnvPool) -> None:
    async def episode() -> dict[str, float]:
        await four.metrics()
        info = await play(four)
        assert info["seed"] == 1 and info["pid"] != os.getpid()
        total: dict[str, float] = {}
        while "env/count/step" not in total:  # giving back is not waited for
            total.update(await four.metrics())
        return total

    numbers = asyncio.run(episode())
    assert numbers["env/count/reset"] == numbers["env/count/step"] == numbers["env/count/evaluate"] == 1.0
    assert 0.0 < numbers["env/reset_s/p50"] <= numbers["env/reset_s/p99"]
    assert 0.0 <= numbers["env/utilisation"] <= 1.0


@pytest.mark.parametrize(
    ("fault", "kind"),
    [("hang", "timeout"), ("die", "dead"), ("half_png", "screenshot"), ("bug", "step"), ("raise", "step")],
)
def test_a_fault_ends_the_lease_and_the_pool_is_full_again(four: EnvPool, fault: str, kind: str) -> None:
    async def drill() -> None:
        with pytest.raises(EnvFailure) as caught:
            async with four.lease() as env:
                await env.reset(faulty_task(fault))
                try:
                    await env.step([])
                finally:
                    with pytest.raises(EnvFailure, match="lease is over"):
                        await env.step([])
        assert caught.value.kind == kind
        await until_full(four, kind)
        await until(lambda: len(own_processes()) == 4)
        await asyncio.gather(*(play(four) for _ in range(4)))

    asyncio.run(drill())


@pytest.mark.parametrize(("fault", "kind"), [("raise", "reset"), ("die", "dead"), ("half_png", "screenshot")])
def test_a_reset_that_fails_once_succeeds_on_a_fresh_environment(
    four: EnvPool, resets: Path, tmp_path: Path, fault: str, kind: str
) -> None:
    async def drill() -> None:
        await play(four, faulty_task(fault, at="reset", times=1, marker=tmp_path / "count"))
        await until_full(four, kind)

    resets.unlink(missing_ok=True)
    asyncio.run(drill())
    first, second = resets.read_text().splitlines()
    assert first != second, "the second attempt met the environment that had failed"


@cases("reset")
def test_shared_cases_of_resets(four: EnvPool, resets: Path, tmp_path: Path, case: dict[str, Any]) -> None:
    attempts = 1 + four.config.max_reset_retries
    failures = min(case["fails"], attempts)
    bad = faulty_task("raise", at="reset", times=case["fails"], marker=tmp_path / "count")

    async def rollouts() -> list[Any]:
        tasks = [None, bad, None, None]
        results = await asyncio.gather(*(play(four, task) for task in tasks), return_exceptions=True)
        await until_full(four, *["reset"] * failures)
        return results

    resets.unlink(missing_ok=True)
    results = asyncio.run(rollouts())
    tried = [line for line in resets.read_text().splitlines() if line.endswith(f" {bad.id}")]
    assert len(set(tried)) == len(tried), "an environment that had failed was used again"
    one = results.pop(1)
    assert all(isinstance(result, dict) for result in results)
    if failures == attempts:  # an invalid rollout: no row, and no exception but the typed one
        assert isinstance(one, EnvFailure) and one.kind == "reset"
        assert f"failed on {attempts} environments" in one.message
    else:
        assert isinstance(one, dict)


@cases("gather")
def test_one_failing_loop_leaves_all_other_results_in_order(four: EnvPool, case: dict[str, Any]) -> None:
    async def rollouts() -> list[Any]:
        tasks = [faulty_task("raise") if number in case["fail"] else None for number in range(case["n"])]
        results = await asyncio.gather(*(play(four, task) for task in tasks), return_exceptions=True)
        await until_full(four, *["step"] * len(case["fail"]))
        return results

    results = asyncio.run(rollouts())
    assert len(results) == case["expect"]["rows"]
    invalid = [number for number, result in enumerate(results) if isinstance(result, EnvFailure)]
    assert invalid == case["expect"]["invalid"]
    assert all(isinstance(result, dict) for number, result in enumerate(results) if number not in invalid)


@cases("actors")
def test_dead_and_hung_environments_do_not_touch_the_others(four: EnvPool, case: dict[str, Any]) -> None:
    faults = dict.fromkeys(case["dead"], "die") | dict.fromkeys(case["hung"], "hang")

    async def rollouts() -> list[Any]:
        tasks = [faulty_task(faults.get(number, "")) for number in range(case["n"])]
        results = await asyncio.gather(*(play(four, task) for task in tasks), return_exceptions=True)
        await until_full(four, *["dead"] * len(case["dead"]), *["timeout"] * len(case["hung"]))
        assert (await four.metrics())["env/workers"] == case["expect"]["pool_size_after"]
        return results

    results = asyncio.run(rollouts())
    found = {
        "valid": [number for number, result in enumerate(results) if isinstance(result, dict)],
        "invalid": [number for number, result in enumerate(results) if isinstance(result, EnvFailure)],
    }
    assert {**case["expect"], **found} == case["expect"]


def test_a_stopped_process_is_given_up(four: EnvPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "REPLY_GRACE_S", 1.0)

    async def drill() -> None:
        with pytest.raises(EnvFailure) as caught:
            async with four.lease() as env:
                info = (await env.reset(faulty_task())).info
                os.kill(info["pid"], signal.SIGSTOP)
                await env.step([])
        assert caught.value.kind == "timeout"
        monkeypatch.undo()
        await until_full(four, "timeout")
        await until(lambda: not Path(f"/proc/{info['pid']}").exists())

    asyncio.run(drill())


def test_a_stopped_process_is_found_before_a_long_deadline_ends(closing: Callable[..., EnvPool]) -> None:
    """It is the process that must give a sign of life: an environment that is only slow is left alone."""
    slow_s = PING_TIMEOUT_S + 3.0
    pool = closing(step_timeout_s=300.0, options={"step_s": slow_s})

    async def drill() -> None:
        with pytest.raises(EnvFailure) as caught:
            async with pool.lease(timeout_s=PATIENCE_S) as env:
                info = (await env.reset(faulty_task())).info
                await env.step([])
                os.kill(info["pid"], signal.SIGSTOP)
                await env.step([])
        assert caught.value.kind == "dead"  # not "timeout"
        await until_full(pool, "dead")

    asyncio.run(drill())


def test_closing_removes_what_a_killed_process_left(closing: Callable[..., EnvPool]) -> None:
    pool = closing(heartbeat_s=1000.0, options={"directory": True})

    async def drill() -> None:
        info = await play(pool)
        assert Path(info["directory"]).is_dir()
        os.kill(info["pid"], signal.SIGKILL)
        await pool.close()
        assert not Path(info["directory"]).exists()

    asyncio.run(drill())


def test_an_idle_environment_that_dies_is_replaced(four: EnvPool) -> None:
    async def drill() -> None:
        info = await play(four)
        os.kill(info["pid"], signal.SIGKILL)
        await until_full(four, "dead")

    asyncio.run(drill())


def test_waiting_has_a_deadline_and_an_order(closing: Callable[..., EnvPool]) -> None:
    pool = closing()
    order: list[int] = []

    async def one(number: int) -> None:
        async with pool.lease(timeout_s=PATIENCE_S):
            order.append(number)

    async def queue() -> None:
        async with pool.lease(timeout_s=PATIENCE_S):
            with pytest.raises(EnvFailure, match="no environment within") as caught:
                async with pool.lease(timeout_s=0.2):
                    pass
            assert caught.value.kind == "capacity"
            waiting = []
            for number in range(4):
                waiting.append(asyncio.create_task(one(number)))
                while (await pool.metrics())["env/queued"] <= number:
                    await asyncio.sleep(0.02)
            waiting.pop(1).cancel()  # one of them gives up
        await asyncio.gather(*waiting)

    asyncio.run(queue())
    assert order == [0, 2, 3]


def test_cancellation_goes_through_and_loses_no_lease(closing: Callable[..., EnvPool]) -> None:
    pool = closing(step_timeout_s=PATIENCE_S, options={"child": CHILD, "step_s": FOREVER_S})

    async def trajectory(stepping: asyncio.Event) -> None:
        async with pool.lease(timeout_s=PATIENCE_S) as env:
            await env.reset(faulty_task())
            stepping.set()
            await env.step([])

    async def drill() -> None:
        for _ in range(2):  # the second needs what the first had
            stepping = asyncio.Event()
            task = asyncio.create_task(trajectory(stepping))
            await asyncio.wait_for(stepping.wait(), PATIENCE_S)
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until_full(pool, "abandoned", "abandoned")

    asyncio.run(drill())


class Holder:
    """Another process of the job that takes a lease and keeps it."""

    async def hold(self, config: EnvPoolConfig, name: str) -> int:
        self.env: LeasedEnv = get_env_pool(config, name).lease(timeout_s=PATIENCE_S)
        await self.env.__aenter__()
        return os.getpid()


def test_a_lease_outlives_neither_its_process_nor_its_owner(closing: Callable[..., EnvPool]) -> None:
    pool = closing(num_envs=2)

    async def drill() -> None:
        forgotten = pool.lease(timeout_s=PATIENCE_S)
        await forgotten.__aenter__()
        holder = ray.remote(Holder).options(num_cpus=0).remote()
        pid = await asyncio.wait_for(holder.hold.remote(pool.config, pool.name), PATIENCE_S)
        await asyncio.sleep(1.5 * pool.config.lease_ttl_s)
        with pytest.raises(EnvFailure, match="no environment within"):
            async with pool.lease(timeout_s=0.2):
                pass  # both are held, and alive
        os.kill(pid, signal.SIGKILL)
        del forgotten
        await asyncio.gather(play(pool), play(pool))
        await until_full(pool, "abandoned", "abandoned", "capacity")

    asyncio.run(drill())


def test_tasks_are_set_up_on_spares_while_their_rollouts_wait(
    closing: Callable[..., EnvPool], tmp_path: Path
) -> None:
    log = tmp_path / "resets"
    pool = closing(spares=1, options={"child": CHILD, "log": str(log)})
    resets = lambda: len(log.read_text().splitlines()) if log.exists() else 0  # noqa: E731
    next_task, other = faulty_task(), faulty_task("raise", at="evaluate")

    async def waiting(seed: int, reset_to: Task) -> tuple[dict[str, Any], int]:
        async with pool.lease(timeout_s=PATIENCE_S, task=next_task, seed=seed) as env:
            before = resets()
            observation = await env.reset(reset_to, seed=seed)
            return observation.info, resets() - before

    async def drill() -> None:
        await until_full(pool)
        for reset_to, done_by_reset in ((next_task, 0), (other, 1)):
            async with pool.lease(timeout_s=PATIENCE_S) as env:
                await env.reset(faulty_task(), seed=1)
                before = resets()
                later = asyncio.create_task(waiting(2, reset_to))
                await until(lambda before=before: resets() == before + 1)  # done ahead of time
            info, resets_done = await later
            assert info["seed"] == 2 and resets_done == done_by_reset
        numbers: dict[str, float] = {}
        while "env/count/prepare" not in numbers:
            numbers.update(await pool.metrics())

    asyncio.run(drill())


def test_a_task_that_cannot_be_set_up_costs_one_spare(closing: Callable[..., EnvPool]) -> None:
    pool = closing(spares=1, max_reset_retries=0)
    bad = faulty_task("raise", at="reset")

    async def waiting() -> None:
        async with pool.lease(timeout_s=PATIENCE_S, task=bad) as env:
            await env.reset(bad)

    async def drill() -> None:
        async with pool.lease(timeout_s=PATIENCE_S) as env:
            await env.reset(faulty_task())
            later = asyncio.create_task(waiting())
            await until_full(pool, "reset")  # failed once, ahead of time, and was replaced
        with pytest.raises(EnvFailure):
            await later
        await until_full(pool, "reset")

    asyncio.run(drill())


def test_environments_keep_to_the_nodes_that_offer_their_resource(
    nodes: Cluster, closing: Callable[..., EnvPool]
) -> None:
    (desktops,) = nodes.worker_nodes
    (raylet,) = (info.process.pid for info in desktops.all_processes["raylet"])
    pool = closing(num_envs=3, resource="desktop")

    async def drill() -> None:
        async with pool.lease(timeout_s=PATIENCE_S) as one, pool.lease(timeout_s=PATIENCE_S) as two:
            for env in (one, two):
                worker = (await env.reset(faulty_task())).info["pid"]
                assert psutil.Process(worker).ppid() == raylet
            with pytest.raises(EnvFailure, match="2 of 3 work"):  # there is no room for the third
                async with pool.lease(timeout_s=0.5):
                    pass

    asyncio.run(drill())


def test_environments_of_a_server_that_goes_away_move_to_another(
    closing: Callable[..., EnvPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # the servers' environments import fault_env

    async def rollouts(pool: EnvPool, count: int) -> list[Any]:
        return await asyncio.gather(*(play(pool) for _ in range(count)), return_exceptions=True)

    with serving(capacity=4) as stays, contextlib.ExitStack() as leaves:
        urls = [stays, leaves.enter_context(serving(capacity=4))]
        pool = closing(backend="remote", num_envs=4, options={"urls": urls}, max_reset_retries=2)

        async def drill() -> None:
            await until_full(pool)
            assert all(isinstance(result, dict) for result in await rollouts(pool, 8))
            async with pool.lease() as one, pool.lease() as two, pool.lease() as three:
                held = [one, two, three]
                await asyncio.gather(*(env.reset(faulty_task(), seed=1) for env in held))
                await asyncio.to_thread(leaves.close)
                ends = await asyncio.gather(*(env.step([]) for env in held), return_exceptions=True)
                lost = [end for end in ends if isinstance(end, EnvFailure)]
                assert {end.kind for end in lost} == {"dead"} and 0 < len(lost) < 3
            results = await rollouts(pool, 8)
            assert all(isinstance(result, dict) for result in results), results
            async with asyncio.timeout(PATIENCE_S):
                while (await pool.metrics())["env/workers"] < 4:
                    await asyncio.sleep(0.05)

        asyncio.run(drill())


def test_whoever_watches_sees_the_numbers_and_starts_no_pool(four: EnvPool) -> None:
    assert pool_metrics("four")["env/workers"] == 4.0
    assert pool_metrics("no-such-pool") == {}
    assert "no-such-pool" not in ray.util.list_named_actors()


def test_a_dead_agent_loop_worker_is_noticed(cluster: str) -> None:
    names = ["agent_loop_worker_0", "agent_loop_worker_1"]
    actors = [ray.remote(Holder).options(name=name, num_cpus=0).remote() for name in names]
    ray.get([actor.__ray_ready__.remote() for actor in actors], timeout=PATIENCE_S)
    watch = WorkerWatch(period_s=0.0)
    watch.look(1.0)
    ray.kill(actors[1])

    async def drill() -> None:
        def noticed() -> bool:
            try:
                watch.look(time.monotonic())
            except RolloutStalled as stalled:
                assert "agent_loop_worker_1" in str(stalled) and "agent_loop_worker_0" not in str(stalled)
                return True
            return False

        await until(noticed)

    asyncio.run(drill())
    ray.kill(actors[0])


def test_the_pool_has_one_configuration(four: EnvPool) -> None:
    assert get_env_pool(four.config, name="four") is four
    with pytest.raises(ValueError, match="another configuration"):
        get_env_pool(settings(num_envs=3), name="four")
    with pytest.raises(ValueError, match="another configuration"):
        holder = ray.remote(Holder).options(num_cpus=0).remote()
        ray.get(holder.hold.remote(settings(num_envs=3), "four"), timeout=PATIENCE_S)


def test_a_backend_that_never_starts_is_refused_with_its_reason(closing: Callable[..., EnvPool]) -> None:
    pool = closing(num_envs=1, options={"start_fault": "raise"})
    with pytest.raises(EnvFailure, match="asked to fail at start") as caught:
        asyncio.run(play(pool))
    assert caught.value.kind == "capacity"


def test_a_killed_pool_comes_back_with_the_next_lease(closing: Callable[..., EnvPool]) -> None:
    pool = closing()
    asyncio.run(play(pool))
    ray.kill(ray.get_actor(pool.name))
    asyncio.run(play(pool))


def test_closing_leaves_nothing_behind(four: EnvPool) -> None:
    async def close() -> None:
        pool = get_env_pool(settings(spares=1), name="closed")
        before = len(own_processes())
        await until_full(pool)
        assert len(own_processes()) == before + 2
        async with pool.lease() as env:
            await env.reset(faulty_task("hang"))
            hung = asyncio.create_task(env.step([]))
            await asyncio.sleep(0.2)
            await pool.close()
            with pytest.raises(EnvFailure):
                await hung
        await pool.close()
        await until(lambda: len(own_processes()) == before)
        with pytest.raises(EnvFailure, match="closed"):
            async with pool.lease():
                pass

    asyncio.run(close())


DRIVER = """
import asyncio, os, signal, sys, ray
from fault_env import faulty_task
from verl_gui.envs.pool import EnvPoolConfig, get_env_pool

async def main():
    ray.init(address=sys.argv[1], log_to_driver=False)
    pool = get_env_pool(EnvPoolConfig("fault_env:FaultEnv", num_envs=1, options={"child": sys.argv[2]}))
    async with pool.lease(timeout_s=60) as env:
        await env.reset(faulty_task("hang"))
        asyncio.create_task(env.step([]))
        await asyncio.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_a_killed_driver_leaves_nothing_behind(four: EnvPool, cluster: str) -> None:
    asyncio.run(until_full(four))
    before = set(own_processes())
    driver = subprocess.run([sys.executable, "-c", DRIVER, cluster, CHILD], timeout=PATIENCE_S, check=False)
    assert driver.returncode == -signal.SIGKILL
    asyncio.run(until(lambda: set(own_processes()) == before))
