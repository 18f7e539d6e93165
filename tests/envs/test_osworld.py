import json
import os
import sys
import time
from pathlib import Path

import pytest
from env_cases import CASES
from fault_env import png
from server_tools import http, raw_server, says, says_nothing, slow_drip

from verl_gui.actions import Action, ActionType
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.osworld.client import GuestClient
from verl_gui.envs.osworld.env import OsworldEnv
from verl_gui.envs.osworld.guests import FixedGuest
from verl_gui.envs.osworld.scoring import OsworldScorer
from verl_gui.envs.osworld.setup_steps import Preparation, check_steps, needed_programs
from verl_gui.tasks.sources import load_tasks
from verl_gui.tasks.task import Task, TaskFormatError

SCREEN = (64, 48)
SAMPLE = Path(__file__).parents[2].parent / "shared/data/osworld_sample"
JSON = "application/json"
DONE = {"status": "success", "output": "", "error": "", "returncode": 0}


def guest(**answers):
    """A guest that answers each path with fixed bytes (or bytes of the request), and notes what it got."""
    seen = []
    picture = http(200, "image/png", png())
    table = {"/screenshot": picture, "/execute": http(200, JSON, json.dumps(DONE).encode())}
    table |= {path.replace("__", "/"): answer for path, answer in answers.items()}

    def answer(connection, stop, request):
        head, body = request
        path = head.split(b" ")[1].decode()
        seen.append((path, body))
        found = table.get(path, http(200, JSON, json.dumps(DONE).encode()))
        if callable(found):
            found(connection, stop)
        else:
            connection.sendall(found)

    return answer, seen


# -- faults of the guest ----------------------------------------------------------------------------------

PICTURE = png()


@pytest.mark.parametrize(
    "answer, kind",
    [
        (says(http(200, "text/html", b"<html>Bad gateway</html>")), "screenshot"),
        (says(http(200, "image/png", PICTURE[: len(PICTURE) // 2])), "screenshot"),  # half a picture
        (says(http(200, "image/png", PICTURE[:50], length=len(PICTURE))), "screenshot"),  # connection cut
        (says(http(200, "image/png", PICTURE[:-20] + b"\0" * 20)), "screenshot"),
        (says(http(200, "image/png", b"")), "screenshot"),
        (says(http(200, "image/png", png((32, 32)))), "screenshot"),
        (says(http(500, "text/html", b"<h1>Internal Server Error</h1>")), "screenshot"),
        (says(http(500, "image/png", PICTURE)), "screenshot"),
        (says(b""), "screenshot"),
        (says_nothing, "timeout"),
        (slow_drip(http(200, "image/png", PICTURE * 1000)), "timeout"),
    ],
)
def test_what_is_no_screenshot_is_a_failure_in_time(answer, kind, monkeypatch):
    monkeypatch.setattr("verl_gui.envs.osworld.client.SCREENSHOT_TIMEOUT_S", 0.5 if kind == "timeout" else 20)
    with raw_server(answer) as url:
        began = time.monotonic()
        with pytest.raises(EnvFailure) as failure:
            GuestClient(url).screenshot(SCREEN)
        assert failure.value.kind == kind
        assert time.monotonic() - began < 25


@pytest.mark.parametrize(
    "answer, kind",
    [
        (says(http(200, "text/html", b"<html>")), "step"),
        (says(http(500, JSON, b'{"status": "error"}')), "step"),
        (says(http(200, JSON, b"[]")), "step"),
        (says(http(200, JSON, b'{"output": null, "returncode": 0}')), "step"),
        (says(http(200, JSON, b'{"output": "", "returncode"', length=500)), "step"),
        (says_nothing, "timeout"),
    ],
)
def test_what_is_no_result_of_a_command_is_a_failure(answer, kind):
    with raw_server(answer) as url, pytest.raises(EnvFailure) as failure:
        GuestClient(url).execute(["true"], kind="step", timeout_s=0.5 if kind == "timeout" else 20)
    assert failure.value.kind == kind


def test_nobody_there_is_dead():
    with raw_server(says(b"")) as url:
        pass
    with pytest.raises(EnvFailure) as failure:
        GuestClient(url).screenshot(SCREEN)
    assert failure.value.kind == "dead"


# -- set-up -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample of OSWorld's tasks is not on this machine")
def test_every_task_of_the_sample_loads_and_can_be_prepared_or_says_why_not():
    tasks = load_tasks(SAMPLE / "test_sample.json")
    assert len(tasks) == 40
    refused = {}
    for task in tasks:
        try:
            check_steps(task)
        except TaskFormatError as error:
            refused[task.id] = error
    assert len(refused) == 4  # those that open tabs through the browser's debugging port
    assert all("chrome_open_tabs" in str(error) for error in refused.values())


def test_programs_that_a_task_needs():
    task = Task(
        id="t",
        related_apps=("libreoffice calc", "os", "vscode"),
        config=(
            {"type": "launch", "parameters": {"command": ["/usr/bin/thunderbird"]}},
            {"type": "launch", "parameters": {"command": "VLC_VERBOSE=-1 vlc", "shell": True}},
        ),
    )
    assert needed_programs(task) == {"libreoffice", "code", "/usr/bin/thunderbird"}


def prepare(url, *steps, tmp_path, apps=()):
    task = Task(id="t", config=tuple({"type": kind, "parameters": p} for kind, p in steps), related_apps=apps)
    Preparation(GuestClient(url), (1920, 1080), "pw'd", tmp_path).prepare(task)


def test_places_are_filled_and_requests_have_osworlds_form(tmp_path):
    answer, seen = guest()
    with raw_server(answer, with_request=True) as url:
        prepare(
            url,
            ("execute", {"command": "echo {CLIENT_PASSWORD} {SCREEN_WIDTH_HALF}", "shell": True}),
            ("command", {"command": ["click", "{SCREEN_WIDTH}", "{SCREEN_HEIGHT}"]}),
            ("launch", {"command": ["code", "a b"]}),
            ("activate_window", {"window_name": "W", "by_class": True}),
            ("open", {"path": "/home/user/x.docx"}),
            ("sleep", {"seconds": 0.01}),
            tmp_path=tmp_path,
        )
    assert [(path, json.loads(body)) for path, body in seen[1:]] == [
        ("/setup/execute", {"command": "echo pw'd 960", "shell": True}),
        ("/setup/execute", {"command": ["click", "1920", "1080"], "shell": False}),
        ("/setup/launch", {"command": ["code", "a b"], "shell": False}),
        ("/setup/activate_window", {"window_name": "W", "strict": False, "by_class": True}),
        ("/setup/open_file", {"path": "/home/user/x.docx"}),
    ]


def test_downloads_are_kept_and_uploaded_byte_for_byte(tmp_path):
    answer, seen = guest()
    content = bytes(range(256)) + b"\r\n--boundary\r\n"
    with raw_server(answer, with_request=True) as url:
        with raw_server(says(http(200, "x/y", content))) as source:
            file = ("download", {"files": [{"url": f"{source}/f", "path": "/home/user/f.bin"}]})
            prepare(url, file, tmp_path=tmp_path)
        prepare(url, file, tmp_path=tmp_path)  # its server is gone
    uploads = [body for path, body in seen if path == "/setup/upload"]
    assert len(uploads) == 2 and all(content in body and b"/home/user/f.bin" in body for body in uploads)


@pytest.mark.parametrize(
    "step, why",
    [
        (("download", {"files": [{"url": "http://127.0.0.1:9/f", "path": "/x"}]}), "cannot download"),
        (("upload_file", {"files": [{"local_path": "/does/not/exist", "path": "/x"}]}), "cannot read"),
        (("open", {"path": "/x"}), "open_file"),
    ],
)
def test_a_failed_step_fails_the_reset_and_names_it(step, why, tmp_path):
    answer, _ = guest(__setup__open_file=http(500, JSON, b"{}"))
    with raw_server(answer, with_request=True) as url, pytest.raises(EnvFailure, match=why) as failure:
        prepare(url, step, tmp_path=tmp_path)
    assert "config[0]" in failure.value.message and failure.value.kind in ("reset", "dead")


def test_what_a_guest_lacks_is_said_for_the_task(tmp_path):
    lacks = json.dumps({**DONE, "output": "gimp\n"}).encode()
    answer, _ = guest(__execute=http(200, JSON, lacks))
    refused = pytest.raises(TaskFormatError, match="no gimp")
    with raw_server(answer, with_request=True) as url, refused as error:
        prepare(url, tmp_path=tmp_path, apps=("gimp", "vlc"))
    assert error.value.file == "t"


# -- the environment --------------------------------------------------------------------------------------

INFEASIBLE = Task(id="i", instruction="impossible", evaluator={"func": "infeasible"})
FEASIBLE = Task(id="f", instruction="rename it", evaluator={"func": "exact_match", "goal": 1})

# Stands in for OSWorld's process; what it scores is tested with the real one in test_osworld_contract.py.
SCORER = """
import json, os, sys
stream = os.fdopen(int(sys.argv[1]), "r+b", buffering=0)
stream.write(b'{"ready": true}\\n')
for line in os.fdopen(os.dup(int(sys.argv[1])), "rb"):
    request = json.loads(line)
    goal = request["task"]["evaluator"]["goal"]
    score = None if request["only_check"] else goal
    stream.write(json.dumps({"score": score}).encode() + b"\\n")
"""


@pytest.fixture
def fake_python(tmp_path):
    """An interpreter that runs SCORER whatever script it is given."""
    script = tmp_path / "scorer.py"
    script.write_text(SCORER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$2"\n')
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    "infeasible, last, goal, expected",
    [
        *(
            (case["infeasible"], case["last"], case["goal"], case["expect"])
            for case in CASES
            if case["kind"] == "env_score"
        ),
        (True, "FAIL", False, 1.0),
        (False, "DONE", False, 0.0),
        (True, None, False, 0.0),
        (False, None, True, 1.0),  # ended by the step limit
        (True, "CALL_USER", False, 1.0),
    ],
)
def test_score_rules(infeasible, last, goal, expected, fake_python, tmp_path):
    kinds = {"DONE": ActionType.FINISHED, "FAIL": ActionType.FAIL, "CALL_USER": ActionType.CALL_USER}
    answer, _ = guest()
    with raw_server(answer, with_request=True) as url:
        env = OsworldEnv(SCREEN, guest=url, osworld_python=fake_python, cache=str(tmp_path), pause_s=0)
        feasible = Task(id="f", instruction="do it", evaluator={"func": "exact_match", "goal": goal})
        observation = env.reset(INFEASIBLE if infeasible else feasible)
        assert observation.info["instruction"] and observation.screenshot == PICTURE
        env.step([Action(ActionType.CLICK, x=3, y=4)])
        if last:
            assert env.step([Action(kinds[last])]).terminated
            with pytest.raises(RuntimeError):
                env.step([])
        assert env.evaluate() == expected
        env.close()
        env.close()


def test_actions_arrive_as_literals(fake_python, tmp_path):
    answer, seen = guest()
    evil = "'); import os; os.system('x') #\n"
    with raw_server(answer, with_request=True) as url:
        env = OsworldEnv(SCREEN, guest=url, osworld_python=fake_python, cache=str(tmp_path), pause_s=0)
        env.reset(FEASIBLE)
        env.step([Action(ActionType.TYPE, text=evil)])
        env.close()
    command = json.loads([body for path, body in seen if path == "/execute"][-1])["command"]
    assert command[:2] == ["python", "-c"]
    assert all(line.startswith(("import ", "pyautogui.")) for line in command[2].strip().splitlines())


def test_a_guest_that_dies_is_no_failed_attempt(fake_python, tmp_path):
    answer, _ = guest()
    with raw_server(answer, with_request=True) as url:
        env = OsworldEnv(SCREEN, guest=url, osworld_python=fake_python, cache=str(tmp_path), pause_s=0)
        env.reset(FEASIBLE)
    with pytest.raises(EnvFailure) as failure:
        env.evaluate()
    assert failure.value.kind == "dead"
    env.close()


def test_tasks_need_osworlds_evaluators(monkeypatch, tmp_path):
    monkeypatch.delenv("VERL_GUI_OSWORLD_PYTHON", raising=False)
    answer, _ = guest()
    with raw_server(answer, with_request=True) as url:
        env = OsworldEnv(SCREEN, guest=url, cache=str(tmp_path), pause_s=0)
        with pytest.raises(TaskFormatError, match="evaluators are needed"):
            env.reset(FEASIBLE)
        env.reset(INFEASIBLE)
        env.close()


def test_a_guest_that_never_shows_its_screen_fails_the_reset(tmp_path):
    with raw_server(says(http(200, "text/html", b"<html>"))) as url:
        env = OsworldEnv(SCREEN, guest=url, cache=str(tmp_path), start_timeout_s=0.5)
        with pytest.raises(EnvFailure) as failure:
            env.reset(INFEASIBLE)
        assert failure.value.kind == "reset"
        env.close()


def test_a_used_guest_is_reverted_or_refused(tmp_path):
    log = tmp_path / "reverted"
    revert = FixedGuest("http://x", ["touch", str(log)])
    assert revert.fresh() == "http://x" and not log.exists()
    assert revert.fresh() == "http://x" and log.exists()
    once = FixedGuest("http://x")
    once.fresh()
    with pytest.raises(EnvFailure, match="revert_command"):
        once.fresh()
    broken = FixedGuest("http://x", ["false"])
    broken.fresh()
    with pytest.raises(EnvFailure, match="cannot revert"):
        broken.fresh()


# -- the scoring process ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, kind",
    [
        ("", "reset"),  # no such package, say
        ("say('{}')", "dead"),
        ("say('{}'); hear(); time.sleep(60)", "timeout"),
        ("say('{}'); hear(); say('{\"score\": 7}'); time.sleep(60)", "evaluate"),
        ("say('{}'); hear(); say('{\"error\": \"KeyError\"}'); time.sleep(60)", "evaluate"),
        ("say('{}'); hear(); say('nonsense'); time.sleep(60)", "dead"),
    ],
)
def test_a_scoring_process_that_breaks_is_a_failure(body, kind, tmp_path):
    python = tmp_path / "python"
    code = """import os, sys, time
say = lambda line: os.write(int(sys.argv[1]), line.encode() + b"\\n")
hear = lambda: os.read(int(sys.argv[1]), 1 << 20)
"""
    (tmp_path / "code.py").write_text(code + body)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/code.py "$2"\n')
    os.chmod(python, 0o755)
    scorer = OsworldScorer(str(python), tmp_path / "cache", timeout_s=1.0)
    with pytest.raises(EnvFailure) as failure:
        scorer.score(FEASIBLE, {}, "DONE")
    assert failure.value.kind == kind
    scorer.close()
