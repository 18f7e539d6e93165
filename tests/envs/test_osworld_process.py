import sys
import time
from types import SimpleNamespace

import pytest
from desktop_tools import gone, wait_until
from fault_env import faulty_task, png
from server_tools import HERE

from verl_gui.actions import Action, ActionType
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.docker.orphans import OWNER_LABEL
from verl_gui.envs.osworld.desktop_env_adapter import arrange
from verl_gui.envs.osworld.process_env import ProcessEnv
from verl_gui.envs.registry import make_env
from verl_gui.tasks.task import Task, TaskFormatError


@pytest.fixture
def python(tmp_path):
    """An interpreter that knows the fault environment."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{HERE}" exec {sys.executable} "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_an_episode_in_another_interpreter(python):
    env = ProcessEnv(python, "fault_env:FaultEnv", {})
    assert env.screen == (64, 48)
    pid = env.reset(Task(id="t"), seed=5).info["pid"]
    result = env.step([Action(ActionType.WAIT, seconds=0.0)])
    assert result.observation.screenshot == png() and not result.terminated
    assert env.evaluate() == 1.0
    env.close()
    env.close()
    assert wait_until(lambda: gone(pid))
    assert not env._directory.exists()
    with pytest.raises(EnvFailure):
        env.reset(Task(id="t"))


@pytest.mark.parametrize(
    "fault, kind",
    [
        ("raise", "step"),
        ("die", "dead"),
        ("hang", "timeout"),
        ("half_png", "screenshot"),
        ("no_png", "screenshot"),
    ],
)
def test_after_a_failure_the_process_is_new(fault, kind, python):
    env = ProcessEnv(python, "fault_env:FaultEnv", {}, step_timeout_s=0.5)
    broken = env.reset(faulty_task(fault)).info["pid"]
    began = time.monotonic()
    with pytest.raises(EnvFailure) as failure:
        env.step([])
    assert failure.value.kind == kind and time.monotonic() - began < 10
    assert wait_until(lambda: gone(broken))
    with pytest.raises(EnvFailure):
        env.evaluate()
    assert env.reset(Task(id="t")).info["pid"] != broken
    env.close()


def test_a_task_that_is_refused_keeps_the_process(python):
    env = ProcessEnv(python, "fault_env:FaultEnv", {})
    pid = env.reset(Task(id="t")).info["pid"]
    with pytest.raises(TaskFormatError):
        env.reset(Task(id=""))
    assert env.reset(Task(id="t")).info["pid"] == pid
    env.close()


@pytest.mark.parametrize("python, factory", [("/does/not/exist", "a:b"), (sys.executable, "no.such:thing")])
def test_what_does_not_start_is_a_failure(python, factory):
    with pytest.raises(EnvFailure) as failure:
        ProcessEnv(python, factory, {})
    assert failure.value.kind in ("reset", "dead")


def test_an_interpreter_is_needed(monkeypatch):
    monkeypatch.delenv("VERL_GUI_OSWORLD_PYTHON", raising=False)
    with pytest.raises(ValueError, match="osworld-venv"):
        make_env("osworld-desktop-env")


@pytest.mark.parametrize("kvm", [True, False])
def test_osworlds_provider_gets_our_ports_our_label_and_the_truth_about_kvm(kvm):
    ran = []
    containers = SimpleNamespace(run=lambda image, **options: ran.append((image, options)), list=lambda: [1])
    client = SimpleNamespace(containers=containers, ping=lambda: True)
    provider = SimpleNamespace(environment={"RAM_SIZE": "4G"}, client=None)
    arrange(provider, client, (20_000, 20_001, 20_002, 20_003), kvm=kvm)
    asked = [provider._get_available_port(first) for first in (8006, 5000, 9222, 8080)]
    assert asked == [20_000, 20_001, 20_002, 20_003]
    assert provider.environment.get("KVM") == (None if kvm else "N")
    provider.client.containers.run("image", detach=True)
    image, options = ran[0]
    assert image == "image" and options["detach"]
    assert options["labels"][OWNER_LABEL].startswith("verl-gui-docker")
    assert provider.client.containers.list() == [1] and provider.client.ping()
