import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from desktop_tools import gone, wait_until
from fault_env import faulty_task
from server_tools import HERE, serving

from verl_gui import cli
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.remote import wire
from verl_gui.envs.remote.env import RemoteEnv
from verl_gui.envs.remote.http import call
from verl_gui.envs.server.leases import LeaseTable
from verl_gui.envs.server.settings import ServerSettings
from verl_gui.tasks.task import Task

TOKEN = "a-long-secret-token"
TYPED = {"Content-Type": wire.CONTENT_TYPE}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


# -- places -----------------------------------------------------------------------------------------------


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_places_are_limited_and_come_back():
    table = LeaseTable(2, ttl_s=10)
    one, other = table.admit(), table.admit()
    assert one != other and len(one) >= 20
    assert table.admit() is None
    assert table.release(one) and not table.release(one)
    assert table.admit() is not None


def test_a_lease_ends_in_silence_but_not_in_a_call():
    clock = Clock()
    table = LeaseTable(3, ttl_s=10, clock=clock)
    silent, renewed, calling = (table.admit() for _ in range(3))
    table.begin(calling)
    clock.now = 9
    assert table.renew(renewed) and table.expired() == []
    clock.now = 10
    assert table.expired() == [silent]
    table.release(silent)
    clock.now = 30
    assert table.expired() == [renewed] and table.busy(calling)
    table.end(calling)
    clock.now = 39.9
    assert calling not in table.expired()
    assert not table.renew("unknown")
    table.end("unknown")


# -- who is let in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_the_network_is_refused_without_a_token(host):
    with pytest.raises(ValueError, match="without a token"):
        ServerSettings("desktop", host=host)
    assert ServerSettings("desktop", host=host, token=TOKEN).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_this_machine_needs_no_token(host):
    assert ServerSettings("desktop", host=host).token is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"capacity": 0},
        {"port": 70_000},
        {"token": "short"},
        {"step_timeout_s": 0},
        {"lease_ttl_s": float("inf")},
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError):
        ServerSettings("desktop", **wrong)


def test_settings_do_not_show_the_token():
    assert TOKEN not in repr(ServerSettings("desktop", token=TOKEN))


def test_the_token_is_asked_for_everywhere():
    with serving(token=TOKEN) as url:
        doors = (("GET", "/status"), ("POST", "/leases"), ("POST", "/leases/x"), ("DELETE", "/leases/x"))
        for method, path in doors:
            for shown in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
                assert call(method, url + path, timeout_s=5, headers={**TYPED, **shown}).status == 401
        with pytest.raises(EnvFailure, match="token is missing or wrong"):
            RemoteEnv(url, token="wrong")
        RemoteEnv(url, token=TOKEN).close()


def test_requests_are_limited():
    with serving(max_request_bytes=1000, request_timeout_s=0.3) as url:

        def post(path, data=b"", headers=TYPED):
            return call("POST", url + path, timeout_s=5, data=data, headers=headers).status

        assert post("/leases", headers={"Content-Type": "text/plain"}) == 415  # a web page may send it
        assert post("/leases/unknown", wire.encode(wire.EvaluateCall())) == 404
        grant = wire.decode(call("POST", f"{url}/leases", timeout_s=20, headers=TYPED).body, wire.LeaseGrant)
        lease = f"/leases/{grant.id}"
        assert post(lease, b"x" * 2000) == 413
        assert post(lease, b"<html>") == 422
        assert post(lease, wire.encode(wire.StartCall("os:system", {}))) == 422
        assert post(f"{lease}/renew") == 204
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=5) as slow:
            head = f"POST {lease} HTTP/1.1\r\nHost: x\r\nContent-Type: {wire.CONTENT_TYPE}\r\n"
            slow.sendall(head.encode() + b"Content-Length: 90\r\n\r\nabc")  # and never the rest
            assert b" 408 " in slow.recv(1000).split(b"\r\n")[0]
        assert call("DELETE", url + lease, timeout_s=5).status == 204
        assert call("DELETE", url + lease, timeout_s=5).status == 404


def test_a_full_server_says_when_to_ask_again():
    with serving(capacity=1) as url:
        with_place = call("POST", f"{url}/leases", timeout_s=20, headers=TYPED)
        refused = call("POST", f"{url}/leases", timeout_s=20, headers=TYPED)
        assert (with_place.status, refused.status) == (201, 503)
        assert int(refused.headers["retry-after"]) >= 1


def test_an_environment_that_does_not_start_takes_no_place():
    with serving(capacity=1, options={"start_fault": "raise"}) as url:
        for _ in range(2):
            with pytest.raises(EnvFailure, match="asked to fail at start"):
                RemoteEnv(url)


# -- nothing stays behind ---------------------------------------------------------------------------------


def children(marker):
    running = psutil.process_iter(["cmdline"])
    return [p.pid for p in running if (p.info["cmdline"] or [])[-2:] == ["sleep", marker]]


def serve(*arguments, env=()):
    """A server of the command line: its process and address."""
    command = [sys.executable, "-m", "verl_gui.cli", "env", "serve", "fault_env:FaultEnv", "--port", "0"]
    variables = {**os.environ, **dict(env)}
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, env=variables, text=True)
    line = process.stdout.readline()
    assert "http://" in line, line
    return process, line.split()[-1]


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_whatever_ends_the_server_ends_its_environments(signal_name):
    marker = f"{7000 + os.getpid() % 1000}.{signal.Signals[signal_name].value}"
    process, url = serve("--options", json.dumps({"child": marker}), "--num-envs", "2")
    try:
        held, idle = RemoteEnv(url), RemoteEnv(url)
        idle.close()
        held.reset(Task(id="t"))
        found = children(marker)
        assert len(found) == 2
        held._lease.stop_renewing()
        process.send_signal(signal.Signals[signal_name])
        process.wait(20)
        assert wait_until(lambda: all(gone(pid) for pid in found))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_killed_client_gives_its_environment_back():
    with serving(capacity=1, lease_ttl_s=1.0) as url:
        code = (
            "import sys, time; sys.path.insert(0, sys.argv[2])\n"
            "from verl_gui.envs.remote.env import RemoteEnv\n"
            "env = RemoteEnv(sys.argv[1]); print('ready', flush=True); time.sleep(1000)"
        )
        client = subprocess.Popen([sys.executable, "-c", code, url, str(HERE)], stdout=subprocess.PIPE)
        assert client.stdout.readline() == b"ready\n"
        client.kill()
        client.wait()
        client.stdout.close()
        began = time.monotonic()
        RemoteEnv(url, acquire_timeout_s=20).close()
        assert time.monotonic() - began < 20


def test_the_hung_environment_of_a_client_that_gave_up_is_killed():
    with serving(capacity=1, step_timeout_s=1000) as url:
        env = RemoteEnv(url)
        env.reset(faulty_task("hang", at="step"))
        env._lease.grant.timeout_s["step"] = -4.5  # this client waits half a second
        with pytest.raises(EnvFailure) as late:
            env.step([])
        assert late.value.kind == "timeout"
        assert env.reset(Task(id="t")).screenshot  # on the only place there is
        env.close()


# -- the command ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["desktop", "--host", "0.0.0.0"], "without a token"),
        (["desktop", "--token-file", "/does/not/exist"], "No such file"),
        (["desktop", "--options", "[1]"], "JSON object"),
        (["desktop", "--num-envs", "0"], "capacity"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, why, capsys, monkeypatch):
    monkeypatch.delenv("VERL_GUI_TOKEN", raising=False)
    assert cli.main(["env", "serve", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_the_token_comes_from_a_file_and_does_not_reach_the_environments(tmp_path: Path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    process, url = serve("--token-file", str(tmp_path / "token"), env={"VERL_GUI_TOKEN": TOKEN}.items())
    try:
        env = RemoteEnv(url, token=TOKEN)
        pid = env.reset(Task(id="t")).info["pid"]
        assert TOKEN.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        env.close()
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
