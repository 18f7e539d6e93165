import json
import os
import shutil
import signal
import time
from importlib import resources

import psutil
import pytest
from desktop_tools import directories_of, footprint, gone, run_and_kill, wait_until, x_leftovers
from env_cases import cases

from verl_gui.actions import Action, ActionType
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.checker import check_env
from verl_gui.envs.desktop import DesktopEnv
from verl_gui.tasks.task import Task, TaskFormatError

pytestmark = [pytest.mark.desktop, pytest.mark.timeout(300)]

TASKS = {
    file.name: json.loads(file.read_text())
    for file in resources.files("verl_gui.tasks").joinpath("desktop").iterdir()
    if file.name.endswith(".json")
}
FINISHED, FAIL = Action(ActionType.FINISHED), Action(ActionType.FAIL)


@pytest.fixture(scope="module")
def env():
    env = DesktopEnv((800, 600))
    yield env
    env.close()


def make_task(evaluator, config=(), instruction="do it"):
    return Task(id="t", instruction=instruction, config=tuple(config), evaluator=evaluator)


def step_of(kind, **parameters):
    return {"type": kind, "parameters": parameters}


def check(func, result, **rules):
    return {"func": func, "result": result, "expected": {"type": "rule", "rules": rules}}


def run(env, command, timeout_s=20.0):
    return env._guest.run(["/bin/bash", "-c", command], timeout_s=timeout_s)


def test_there_are_tasks():
    assert len(TASKS) >= 24
    assert len({task["id"] for task in TASKS.values()}) == len(TASKS)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_doing_nothing_scores_zero_and_the_solution_one(env, name):
    missing = [program for program in TASKS[name]["related_apps"] if shutil.which(program) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")
    task = Task.from_dict(TASKS[name], file=name)
    observation = env.reset(task)
    assert observation.info["instruction"] == task.instruction
    assert env.evaluate() == 0.0
    *work, last = TASKS[name]["solution"]
    for turn in work:
        if isinstance(turn, dict):  # a dialog has to open first; a person would wait for it too
            assert wait_until(lambda turn=turn: len(env._windows.windows()) == turn["until_windows"])
            assert env._look_when_settled(20.0, quiet_s=0.5)[1]
            continue
        env.step([Action(**action) for action in turn])
    if work:
        assert wait_until(lambda: env.evaluate() == 1.0)
    assert env.step([Action(**action) for action in last]).terminated
    assert env.evaluate() == 1.0


def test_contract():
    check_env(DesktopEnv((640, 480)), Task.from_dict(TASKS["mousepad-append.json"]))


WRITE_DONE = step_of("write_file", path="~/done", text="")
OPEN_FILE = make_task(check("file_exists", {"path": "~/done"}), [WRITE_DONE])
IMPOSSIBLE = make_task({"func": "infeasible"})


def test_doing_nothing_and_saying_so_scores_zero(env):
    env.reset(Task.from_dict(TASKS["mousepad-append.json"]))
    assert env.step([FINISHED]).terminated and env.evaluate() == 0.0


@pytest.mark.parametrize(
    "task, last, score",
    [
        (IMPOSSIBLE, ActionType.FAIL, 1.0),
        (IMPOSSIBLE, ActionType.CALL_USER, 1.0),
        (IMPOSSIBLE, None, 0.0),  # ended by the step limit
        (OPEN_FILE, None, 1.0),
    ],
)
def test_saying_that_it_cannot_be_done(env, task, last, score):
    env.reset(task)
    if last is not None:
        env.step([Action(last)])
    assert env.evaluate() == score


@cases("env_score")
def test_shared_cases_of_scores(env, case):
    last = {"DONE": ActionType.FINISHED, "FAIL": ActionType.FAIL}[case["last"]]
    config = [WRITE_DONE] if case["goal"] else []
    evaluator = {"func": "infeasible"} if case["infeasible"] else OPEN_FILE.evaluator
    env.reset(make_task(evaluator, config))
    env.step([Action(last)])
    assert env.evaluate() == case["expect"]


@pytest.mark.parametrize(
    "func, result, rules, score",
    [
        ("file_equals", {"path": "~/a.txt"}, {"text": "one\ntwo"}, 1.0),
        ("file_equals", {"path": "/home/user/a.txt"}, {"text": "one\ntwo\n"}, 1.0),
        ("file_equals", {"path": "~/a.txt"}, {"text": "one\ntwo\n\n\n"}, 0.0),
        ("file_equals", {"path": "~/missing"}, {"text": ""}, 0.0),
        ("file_contains", {"path": "~/a.txt"}, {"include": ["one"], "exclude": ["three"]}, 1.0),
        ("file_contains", {"path": "~/a.txt"}, {"include": ["one"], "exclude": ["two"]}, 0.0),
        ("file_exists", {"path": "~/a.txt"}, {}, 1.0),
        ("file_exists", {"path": "~/a.txt/b"}, {"kind": "nothing"}, 1.0),
        ("file_exists", {"path": "~/folder"}, {"kind": "directory"}, 1.0),
        ("file_exists", {"path": "~/folder"}, {}, 0.0),
        ("file_contains", {"path": "~/link"}, {"include": []}, 0.0),  # it may point anywhere on the host
        ("file_contains", {"path": "~/linked/hostname"}, {"include": []}, 0.0),
        ("file_exists", {"path": "~/link"}, {}, 0.0),
        ("file_equals", {"path": "~/pipe"}, {"text": ""}, 0.0),  # and would block a careless reader
        ("command_output", {"command": "cat a.txt"}, {"equals": "one\ntwo"}, 1.0),
        ("command_output", {"command": ["echo", "a b"]}, {"include": ["a b"], "exclude": ["'"]}, 1.0),
        ("command_output", {"command": ["false"]}, {"include": ["x"]}, 0.0),
        ("window_open", {"window_name": "nothing like this"}, {}, 0.0),
        ("window_open", {"window_name": "nothing like this"}, {"open": False}, 1.0),
    ],
)
def test_checkers(env, func, result, rules, score):
    if env._task is None or env._task.id != "checkers":
        config = [
            step_of("write_file", path="~/a.txt", text="one\ntwo\n"),
            step_of("make_directory", path="~/folder"),
            step_of("execute", command="ln -s /etc/hostname link"),
            step_of("execute", command="ln -s /etc linked"),
            step_of("execute", command="mkfifo pipe"),
        ]
        env.reset(Task(id="checkers", config=tuple(config), evaluator=check(func, result, **rules)))
    env._task = Task(id="checkers", evaluator=check(func, result, **rules))
    assert env.evaluate() == score


@pytest.mark.parametrize("conj, score", [("and", 0.0), ("or", 1.0)])
def test_several_checks(env, conj, score):
    evaluator = {
        "func": ["file_exists", "file_exists"], "conj": conj,
        "result": [{"path": "~/a"}, {"path": "~/b"}],
        "expected": [{"type": "rule", "rules": {}}, {"type": "rule", "rules": {}}],
    }  # fmt: skip
    env.reset(make_task(evaluator, [step_of("write_file", path="~/a", text="")]))
    assert env.evaluate() == score


@pytest.mark.parametrize(
    "task, field",
    [
        (make_task({"func": "infeasible"}, [step_of("download", url="x")]), "download"),
        (make_task({"func": "compare_pdf"}), "compare_pdf"),
        (make_task({"func": ["file_exists", "file_exists"], "result": [{}]}), "as many"),
        (make_task({"func": "file_exists", "conj": "xor"}), "xor"),
        (make_task({"func": "infeasible"}, [step_of("launch", command=7)]), "command"),
        (make_task({"func": "infeasible"}, [step_of("write_file", path="~/x")]), "text"),
    ],
)
def test_tasks_that_cannot_be_done_here_are_named(env, task, field):
    with pytest.raises(TaskFormatError, match=field):
        env.reset(task)


@pytest.mark.parametrize(
    "step",
    [
        step_of("execute", command="false"),
        step_of("execute", command="sleep 100", timeout=0.2),
        step_of("open", path="~/missing"),
        step_of("write_file", path="/etc/passwd", text=""),
        step_of("write_file", path="~/../../etc/passwd", text=""),
    ],
)
def test_failed_set_up_is_an_environment_failure(env, step):
    with pytest.raises(EnvFailure) as failure:
        env.reset(make_task({"func": "infeasible"}, [step]))
    assert failure.value.kind == "reset"
    with pytest.raises(RuntimeError):
        env.step([])  # a half prepared desktop is not used


def test_window_steps(env):
    config = [
        step_of("launch", command="xterm -T first"),
        step_of("launch", command=["xterm", "-T", "second"]),
        step_of("activate_window", window_name="first"),
        step_of("sleep", seconds=0.1),
    ]
    env.reset(make_task(check("file_exists", {"path": "~/typed"}), config))
    env.step([Action(ActionType.TYPE, text="touch ~/typed; exit\n")])
    assert wait_until(lambda: env.evaluate() == 1.0, 10)
    assert [window.title for window in env._windows.windows()] == ["second"]


def test_nothing_of_an_episode_reaches_the_next(env):
    env.reset(make_task(check("file_exists", {"path": "~/x"})))
    run(env, "touch ~/x /tmp/x; (setsid sleep 1000 &)")
    assert env.evaluate() == 1.0
    env.reset(make_task(check("file_exists", {"path": "~/x"})))
    assert env.evaluate() == 0.0
    seen = run(env, "ls /tmp; ps -e -o comm | grep -c sleep")
    assert seen.output.split()[-1] == "0" and "x" not in seen.output.split()


def test_command_is_never_shell(env):
    env.reset(make_task({"func": "infeasible"}))
    words = ["echo", "a'b", "$HOME", "`id`", "x; touch y", "line\nbreak", ""]
    assert env._guest.run(["printf", "%s|", *words], timeout_s=10).output == "|".join(words) + "|"


def test_memory_and_processes_are_bounded(env):
    env.reset(make_task({"func": "infeasible"}))
    if env._guest._cgroup is None:
        pytest.fail("control groups cannot be made here; run as root, or delegate a group")
    hungry = run(env, "head -c 3G /dev/zero | tail -c 2G | wc -c", timeout_s=60)
    assert "2147483648" not in hungry.output
    run(env, "bomb() { bomb | bomb & }; bomb; sleep 1", timeout_s=5)
    assert sum(1 for _ in env._guest._cgroup.directories[-1].joinpath("cgroup.procs").open()) <= 400
    env.reset(make_task(check("command_output", {"command": "echo fine"}, equals="fine")))
    assert env.evaluate() == 1.0


@pytest.mark.parametrize("place", ["$HOME", "/tmp", "$JOBS"])
def test_a_full_disk_ends_at_the_sandbox(env, place):
    env.reset(Task.from_dict(TASKS["mousepad-append.json"]))
    free = shutil.disk_usage("/tmp").free
    answer = run(env, f"for n in 1 2 3; do head -c 250M /dev/zero > {place}/filler$n; done")
    assert answer.code != 0  # no room was left, not even for the message where $JOBS is full
    assert free - shutil.disk_usage("/tmp").free < 200 << 20  # others use this disk too
    run(env, f"rm -f {place}/filler*")
    env.step([Action(ActionType.HOTKEY, keys=("ctrl", "end")), Action(ActionType.TYPE, text="bread")])
    assert env.evaluate() == 0.0  # a failed attempt if anything, no fault of the environment
    env.reset(OPEN_FILE)
    assert env.evaluate() == 1.0


def test_network_and_host_are_out_of_reach(env, tmp_path):
    (tmp_path / "secret").write_text("treasure")
    env.reset(make_task({"func": "infeasible"}))
    assert "treasure" not in run(env, f"cat {tmp_path}/secret").output
    assert run(env, "exec 3<>/dev/tcp/127.0.0.1/22").code != 0
    assert run(env, f"kill -9 {os.getpid()}").code != 0


def test_pause_stops_everything_and_nobody_inside_notices(env):
    exit_code = check("file_equals", {"path": "~/code"}, text="0")
    env.reset(make_task(exit_code, [step_of("launch", command="xterm")]))
    env.step([Action(ActionType.TYPE, text="sleep 0.5; echo $? > ~/code\n")])
    env.pause()
    env.pause()
    inside = [psutil.Process(pid) for pid in env._guest._process._members()]
    assert inside and wait_until(lambda: {one.status() for one in inside} == {psutil.STATUS_STOPPED})
    assert env.step([]).observation.size == (800, 600)
    assert wait_until(lambda: env.evaluate() == 1.0)  # an interrupted job would have another exit code


def test_settled_screen_is_still(env):
    env.reset(Task.from_dict(TASKS["mousepad-append.json"]))
    before = env.step([]).observation.screenshot
    env.step([Action(ActionType.TYPE, text="hello")])
    assert wait_until(lambda: env.step([]).info["settled"])  # the machine may be busy
    assert wait_until(lambda: env.step([]).observation.screenshot != before)
    time.sleep(1.0)
    after = env.step([]).observation.screenshot
    time.sleep(1.0)
    assert env.step([]).observation.screenshot == after  # no blinking caret, no clock


@pytest.mark.parametrize("sandbox", ["bwrap", "none"])
def test_nothing_is_left_after_close(sandbox):
    before = footprint()
    env = DesktopEnv((640, 480), sandbox=sandbox)
    config = [step_of("write_file", path="~/a", text="a"), step_of("open", path="~/a")]
    env.reset(make_task(check("command_output", {"command": "cat a"}, equals="a"), config))
    assert env.evaluate() == 1.0
    display = env._xserver.display
    assert footprint() != before
    env.close()
    env.close()
    after = footprint()
    assert after == before and not x_leftovers(display)
    with pytest.raises(EnvFailure, match="closed"):
        env.reset(IMPOSSIBLE)


@pytest.mark.parametrize(
    "victim, number",
    [
        ("xserver", signal.SIGKILL),
        ("guest", signal.SIGKILL),
        ("xserver", signal.SIGSTOP),
    ],
)
def test_faults_are_typed_bounded_and_repaired(env, victim, number):
    env.reset(OPEN_FILE)
    pid = env._xserver.process.pid if victim == "xserver" else env._guest.pid
    os.kill(pid, number)
    time.sleep(0.3)
    start = time.monotonic()
    with pytest.raises(EnvFailure) as failure:
        env.step([Action(ActionType.CLICK, x=5, y=5)])
    assert failure.value.kind == "dead" and time.monotonic() - start < 30
    env.reset(OPEN_FILE)
    assert env.evaluate() == 1.0 and wait_until(lambda: gone(pid))


def test_hung_guest_is_bounded(env, monkeypatch):
    monkeypatch.setattr("verl_gui.envs.desktop.checkers._COMMAND_TIMEOUT_S", 1.0)
    env.reset(make_task(check("command_output", {"command": "echo hi"}, equals="hi")))
    env._guest.start(["/bin/bash", "-c", "kill -STOP $(pgrep -f 'read -r -u 3')"])
    time.sleep(0.5)
    with pytest.raises(EnvFailure) as failure:
        env.evaluate()
    assert failure.value.kind == "timeout"
    env.reset(OPEN_FILE)


def test_everything_dies_with_us(env):
    code = """
import json
from verl_gui.envs.desktop import DesktopEnv
from verl_gui.tasks.task import Task
env = DesktopEnv((640, 480))
step = {"type": "launch", "parameters": {"command": "xterm"}}
env.reset(Task(id="t", instruction="x", config=(step,), evaluator={"func": "infeasible"}))
env.pause()
print(json.dumps(env._xserver.display), flush=True)
"""
    display, pid, descendants = run_and_kill(code)
    assert len(descendants) > 4
    assert wait_until(lambda: all(gone(pid) for pid in descendants))
    assert wait_until(lambda: not x_leftovers(display))
    env.reset(OPEN_FILE)  # whoever comes next tidies up
    assert directories_of(pid) == []
