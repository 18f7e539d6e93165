import time

import pytest
from env_cases import cases
from fault_env import faulty_task, png
from server_tools import HERE, http, raw_server, running_app, says, says_nothing, serving, slow_drip

from verl_gui.actions import Action, ActionType
from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.envs.registry import make_env
from verl_gui.envs.remote import wire
from verl_gui.envs.remote.env import RemoteEnv
from verl_gui.envs.remote.http import HttpCallError, call
from verl_gui.tasks.task import Task, TaskFormatError

GRANT = wire.LeaseGrant("lease", (64, 48), 60.0, {"reset": 0.2, "step": 0.2, "evaluate": 0.2, "pause": 0.2})


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))  # the environments' processes import fault_env
    monkeypatch.setattr("verl_gui.envs.remote.env._MARGIN_S", 0.3)


# -- messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message, kind",
    [
        (wire.ResetCall({"id": "t"}, 7), wire.EnvCall),
        (wire.StepCall((Action(ActionType.CLICK, x=1, y=2), Action(ActionType.WAIT))), wire.EnvCall),
        (wire.StepCall((Action(ActionType.HOTKEY, keys=("ctrl", "c")),)), wire.EnvCall),
        (wire.StepCall((Action(ActionType.TYPE, text="日本語 \n'\"\\"),)), wire.EnvCall),
        (wire.EvaluateCall(), wire.EnvCall),
        (wire.Seen(b"\x89PNG", {"a": [1, None, "x"]}, 1.5, True, {"settled": True}), wire.Answer),
        (wire.Failed("timeout", "late"), wire.Answer),
        (GRANT, wire.LeaseGrant),
    ],
)
def test_messages_arrive_as_they_were(message, kind):
    assert wire.decode(wire.encode(message), kind) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<html>",
        b"\x80\x04\x95.",
        wire.encode({"type": "step"}),
        wire.encode({"type": "exec", "code": "1"}),
        wire.encode({"type": "step", "actions": [{"type": "click"}]}),  # an action without its place
        wire.encode({"type": "step", "actions": [{"type": "type", "text": "\x00"}]}),
        wire.encode(wire.Scored(1.0)),  # an answer is no call
        wire.encode(wire.StartCall("os:system", {})),  # clients cannot choose what is built
    ],
)
def test_what_is_no_call_is_refused(data):
    with pytest.raises(wire.WireError):
        wire.decode(data, wire.EnvCall)


def test_only_plain_data_is_sent():
    with pytest.raises(wire.WireError, match="cannot send"):
        wire.encode(wire.Seen(b"", {"env": object()}, 0.0))


@pytest.mark.parametrize(
    "error, expected",
    [
        (EnvFailure("dead", "gone"), wire.Failed("dead", "gone")),
        (TaskFormatError("f", "config", "no"), wire.BadTask("f", "config", "no")),
        (RuntimeError("no episode"), wire.Refused("no episode")),
        (KeyError("bug"), wire.Failed("step", "KeyError: 'bug'")),
    ],
)
def test_errors_keep_their_type(error, expected):
    answer = wire.failure_of(error, "step")
    assert answer == expected
    kind = EnvFailure if isinstance(error, KeyError) else type(error)
    with pytest.raises(kind):
        wire.raise_failure(answer)


# -- a real server ----------------------------------------------------------------------------------------


def test_an_episode_over_http():
    with serving() as url:
        env = make_env("remote", urls=[url])
        assert env.screen == (64, 48)
        observation = env.reset(Task(id="t"), seed=3)
        assert isinstance(observation, Observation) and observation.screenshot == png()
        assert observation.info["seed"] == 3 and abs(observation.timestamp - time.time()) < 60
        result = env.step([Action(ActionType.WAIT, seconds=0.0)])
        assert isinstance(result, StepResult) and result.terminated is False
        assert env.evaluate() == 1.0
        with pytest.raises(EnvFailure, match="cannot pause"):
            env.pause()
        env.close()
        env.close()
        with pytest.raises(EnvFailure, match="reset"):
            env.step([])
        with pytest.raises(EnvFailure, match="closed"):
            env.reset(Task(id="t"))


@pytest.mark.parametrize(
    "fault, at, kind",
    [
        ("raise", "reset", "reset"),
        ("raise", "step", "step"),
        ("bug", "evaluate", "evaluate"),
        ("half_png", "step", "screenshot"),
        ("no_png", "reset", "screenshot"),
        ("wrong_size", "step", "screenshot"),
        ("die", "step", "dead"),
        ("hang", "evaluate", "timeout"),
    ],
)
def test_failures_over_there_are_failures_here_and_the_next_reset_is_fresh(fault, at, kind):
    with serving(evaluate_timeout_s=0.3) as url:
        env = RemoteEnv(url)
        healthy = env.reset(Task(id="t")).info["pid"]
        with pytest.raises(EnvFailure) as failure:
            env.reset(faulty_task(fault, at=at))
            env.step([])
            env.evaluate()
        assert failure.value.kind == kind
        with pytest.raises(EnvFailure) as gone:
            env.step([])  # a broken episode cannot go on
        assert gone.value.kind == "dead"
        fresh = env.reset(Task(id="t")).info["pid"]
        assert fresh != healthy
        assert env.evaluate() == 1.0
        env.close()


@cases("reset")
def test_a_failed_reset_is_never_used_and_the_next_is_fresh(case, tmp_path):
    task = faulty_task("raise", at="reset", times=case["fails"], marker=tmp_path / "shown")
    with serving() as url:
        env = RemoteEnv(url)
        used = env.reset(Task(id="t")).info["pid"]
        tries = min(case["fails"], 3)
        for _ in range(tries):
            with pytest.raises(EnvFailure):
                env.reset(task)
            with pytest.raises(EnvFailure):
                env.step([])  # no episode on a half-prepared desktop
        if case["fails"] == tries:
            assert env.reset(task).info["pid"] != used
            assert env.evaluate() == 1.0
        env.close()


def test_environments_are_spread_over_the_servers_and_wait_for_a_place():
    with serving(capacity=2) as one, serving(capacity=2) as other:
        held = [RemoteEnv([one, other]) for _ in range(4)]
        for url in (one, other):
            status = wire.decode(call("GET", f"{url}/status", timeout_s=5).body, wire.ServerStatus)
            assert (status.capacity, status.leased) == (2, 2)
        with pytest.raises(EnvFailure) as full:
            RemoteEnv([one, other], acquire_timeout_s=0.2)
        assert full.value.kind == "capacity"
        held.pop().close()
        RemoteEnv([one, other], acquire_timeout_s=10).close()
        for env in held:
            env.close()


def test_a_lost_server_is_replaced_by_another_at_the_next_reset():
    with serving() as stays:
        with serving(capacity=8) as leaves:
            env = RemoteEnv([leaves])
            env._urls.append(stays)
            env.reset(Task(id="t"))
        with pytest.raises(EnvFailure) as lost:
            env.step([])
        assert lost.value.kind == "dead"
        assert env.reset(Task(id="t")).screenshot == png()
        env.close()


def test_a_client_that_lives_keeps_its_place_and_a_silent_one_loses_it():
    with serving(lease_ttl_s=0.6) as url:
        env, silent = RemoteEnv(url), RemoteEnv(url)
        silent._lease.stop_renewing()
        env.reset(Task(id="t"))
        time.sleep(2.0)
        assert env.evaluate() == 1.0
        with pytest.raises(EnvFailure, match="taken the environment back"):
            silent.evaluate()
        assert silent.reset(Task(id="t")).screenshot == png()
        env.close()
        silent.close()


# -- servers that are none --------------------------------------------------------------------------------


@pytest.mark.parametrize("urls", ["", "host:80", "ftp://host/", [], ["http://ok", "nothing"]])
def test_addresses_are_checked(urls):
    with pytest.raises(ValueError):
        RemoteEnv(urls)


def test_nobody_there():
    with raw_server(says(b"")) as url:
        pass
    with pytest.raises(EnvFailure) as failure:
        RemoteEnv(url)
    assert failure.value.kind == "dead"


PROXY_PAGE = http(200, "text/html", b"<html>Login</html>")
NO_MESSAGE = http(200, wire.CONTENT_TYPE, b"<html>")


@pytest.mark.parametrize(
    "answer, kind",
    [
        (says(PROXY_PAGE), "step"),
        (says(NO_MESSAGE), "step"),
        (says(http(500, "text/plain", b"Internal Server Error")), "step"),
        (says(http(302, "text/plain", b"")), "step"),
        (says(http(200, wire.CONTENT_TYPE, wire.encode(wire.Scored(1.0)))), "step"),  # of another question
        (says(http(200, wire.CONTENT_TYPE, b"\x87", length=1000)), "dead"),  # cut off
        (says(b"SSH-2.0-OpenSSH\r\n"), "dead"),
        (says(b""), "dead"),
        (says_nothing, "timeout"),
        (slow_drip(b"HTTP/1.1 200 OK\r\nX-Header: " + b"x" * 10_000), "timeout"),
        (slow_drip(http(200, wire.CONTENT_TYPE, b"y" * 10_000)), "timeout"),
        (says(http(200, wire.CONTENT_TYPE, wire.encode(wire.Seen(png()[:60], {}, 0.0)))), "screenshot"),
        (says(http(200, wire.CONTENT_TYPE, wire.encode(wire.Seen(b"<html>", {}, 0.0)))), "screenshot"),
        (says(http(200, wire.CONTENT_TYPE, wire.encode(wire.Seen(png((32, 32)), {}, 0.0)))), "screenshot"),
    ],
)
def test_whatever_a_server_answers_is_a_failure_in_time(answer, kind, monkeypatch):
    monkeypatch.setattr("verl_gui.envs.remote.env._MARGIN_S", 0.3 if kind == "timeout" else 20)
    grant = http(201, wire.CONTENT_TYPE, wire.encode(GRANT))
    with raw_server(says(grant)) as good, raw_server(answer) as bad:
        env = RemoteEnv(good)
        env._lease.address = f"{bad}/leases/lease"
        began = time.monotonic()
        with pytest.raises(EnvFailure) as failure:
            env.step([])
        assert failure.value.kind == kind
        assert time.monotonic() - began < 25
        env._lease = None


def test_an_answer_has_a_largest_size():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
        await send({"type": "http.response.body"})

    with running_app(app) as url, pytest.raises(HttpCallError, match="more than 5000 bytes") as error:
        call("GET", url, timeout_s=5, max_bytes=5000)
    assert error.value.fault == "broken"
