"""Our guest, tried with OSWorld's unmodified client from PyPI; and our client with OSWorld's evaluators."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from verl_gui.actions import Action, ActionType
from verl_gui.envs.guest.machine import GuestMachine
from verl_gui.envs.osworld.client import GuestClient
from verl_gui.envs.osworld.env import PYTHON_VARIABLE, OsworldEnv
from verl_gui.envs.osworld.process_env import ProcessEnv
from verl_gui.envs.osworld.venv import build_venv, default_directory
from verl_gui.tasks.task import Task, TaskFormatError

pytestmark = [pytest.mark.osworld, pytest.mark.timeout(1500)]

HERE = Path(__file__).parent
SCREEN = (1280, 720)
BENCHMARK_TASK = (
    HERE.parents[1].parent
    / "shared/data/osworld_sample/examples/os/e0df059f-28a6-4169-924f-b9623e7184cc.json"
)
TASK_FILE = BENCHMARK_TASK if BENCHMARK_TASK.exists() else HERE / "data/rename_directory.json"


@pytest.fixture(scope="module")
def python():
    return os.environ.get(PYTHON_VARIABLE) or str(build_venv(default_directory()))


def test_the_unmodified_client(python):
    machine = GuestMachine(SCREEN)
    try:
        guest = ["127.0.0.1", str(machine.port), *map(str, SCREEN)]
        answer = subprocess.run(
            [python, HERE / "osworld_contract.py", *guest, TASK_FILE],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert answer.returncode == 0, answer.stderr[-3000:]
        found = json.loads(answer.stdout.splitlines()[-1])
    finally:
        machine.close()
    tree = {"name": "up", "type": "directory", "children": [{"name": "x.bin", "type": "file"}]}
    assert found == {
        "png": True,
        "platform": "Linux",
        "screen": {"width": 1280, "height": 720},
        "desktop": "/home/user/Desktop",
        "python": "42\n",
        "bash": 3,
        "setup": True,
        "file": True,
        "tree": tree,
        "instruction": json.loads(TASK_FILE.read_text())["instruction"],
        "before": 0.0,
        "step": True,
        "after": 1.0,
        "after_fail": 0,
    }


def test_our_client_and_osworlds_evaluators(python, tmp_path):
    env = OsworldEnv(SCREEN, osworld_python=python, cache=str(tmp_path))
    task = Task.from_dict(json.loads(TASK_FILE.read_text()))
    try:
        env.reset(task)
        assert env.evaluate() == 0.0
        terminal = {"type": "launch", "parameters": {"command": ["xterm"]}}
        wait = {"type": "sleep", "parameters": {"seconds": 2}}
        solvable = Task.from_dict({**task.to_dict(), "config": [*task.config, terminal, wait]})
        env.reset(solvable)
        assert env.evaluate() == 0.0
        name = "~/Desktop/todo_list_Jan_"
        env.step([Action(ActionType.TYPE, text=f"mv {name}1 {name}2\n")])
        assert env.step([Action(ActionType.FINISHED)]).terminated
        assert env.evaluate() == 1.0
        unknown = Task.from_dict({**task.to_dict(), "evaluator": {"func": "no_such_metric"}})
        with pytest.raises(TaskFormatError, match="no_such_metric"):
            env.reset(unknown)
        lacking = Task.from_dict({**task.to_dict(), "related_apps": ["gimp"]})
        with pytest.raises(TaskFormatError, match="no gimp"):
            env.reset(lacking)
    finally:
        env.close()


def test_the_unmodified_desktop_env_in_a_process(python, tmp_path):
    """Docker alone is replaced: its containers forward to a guest of ours."""
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{HERE}" exec {python} "$@"\n')
    wrapper.chmod(0o755)
    task = Task.from_dict(json.loads(TASK_FILE.read_text()))
    machine = GuestMachine(SCREEN)
    env = None
    try:
        options = {
            "screen": list(SCREEN),
            "guest_port": machine.port,
            "path_to_vm": "/none.qcow2",
            "pause_s": 1.0,
            "cache": str(tmp_path / "cache"),
        }
        env = ProcessEnv(str(wrapper), "osworld_fake_docker:adapter", options)
        assert env.reset(task).size == SCREEN
        assert env.evaluate() == 0.0
        env.pause()  # and the next call wakes it
        launch = "import subprocess; subprocess.Popen(['xterm'])"
        assert GuestClient(machine.url).execute(["python", "-c", launch], kind="step").code == 0
        env.step([Action(ActionType.WAIT, seconds=2.0)])
        name = "~/Desktop/todo_list_Jan_"
        env.step([Action(ActionType.TYPE, text=f"mv {name}1 {name}2\n")])
        assert env.step([Action(ActionType.FINISHED)]).terminated
        assert env.evaluate() == 1.0
        impossible = Task(id="i", instruction="impossible", evaluator={"func": "infeasible"})
        env.reset(impossible)  # OSWorld throws the used machine away and starts another
        env.step([Action(ActionType.FAIL)])
        assert env.evaluate() == 1.0
    finally:
        if env is not None:
            env.close()
        machine.close()
