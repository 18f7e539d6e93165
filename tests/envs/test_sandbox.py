import logging
import os
import socket
import subprocess
import threading

import pytest
from desktop_tools import family, gone, wait_until

from verl_gui.envs import processes, sandbox
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.sandbox import SandboxedProcess, SandboxSpec, choose_mode


def marked(process):
    return processes.find_marked(process._mark)


def run_inside(script, spec=None):
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as out:
        process = SandboxedProcess(["/bin/sh", "-c", script], spec or SandboxSpec(), mode="bwrap", stdout=out)
    with os.fdopen(reader) as answer:
        text = answer.read()
    process.close()
    return text


def test_missing_sandbox_is_said_loudly(monkeypatch, caplog):
    monkeypatch.setattr(sandbox, "bwrap_problem", lambda: "no user namespaces")
    with caplog.at_level(logging.WARNING):
        assert choose_mode("auto") == "none"
    assert "NO SANDBOX" in caplog.text and "no user namespaces" in caplog.text
    with pytest.raises(EnvFailure, match="no user namespaces"):
        choose_mode("bwrap")
    with pytest.raises(ValueError, match="chroot"):
        choose_mode("chroot")


@pytest.mark.desktop
def test_host_files_are_out_of_reach(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("treasure")
    script = f"cat {secret} /etc/shadow /root/.bashrc 2>/dev/null; ls / /etc /home /tmp; touch /usr/x 2>&1"
    seen = run_inside(script)
    assert "treasure" not in seen and "shadow" not in seen and "root\n" not in seen
    assert "Read-only file system" in seen


@pytest.mark.desktop
def test_network_is_out_of_reach():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: server.accept(), daemon=True).start()
        port = server.getsockname()[1]
        probe = f"(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo reached || echo refused"
        assert subprocess.check_output(["bash", "-c", probe], text=True) == "reached\n"
        assert run_inside(f"exec bash -c '{probe}'") == "refused\n"
    assert run_inside("cat /proc/net/dev").count(":") == 1  # the loopback of its own


@pytest.mark.desktop
def test_inside_is_an_ordinary_user_without_capabilities():
    assert run_inside("id -u; id -g; hostname; grep CapBnd /proc/self/status").split() == [
        "1000", "1000", "desktop", "CapBnd:", "0000000000000000"]  # fmt: skip
    assert "failed" in run_inside("unshare --user true 2>&1")


@pytest.mark.desktop
def test_processes_inside_see_only_themselves():
    assert int(run_inside("ls -d /proc/[0-9]* | wc -l")) <= 6


@pytest.mark.desktop
def test_environment_of_the_host_stays_outside(monkeypatch):
    monkeypatch.setenv("API_TOKEN", "treasure")
    assert "treasure" not in run_inside("env", SandboxSpec(env={"GREETING": "hello"}))


@pytest.mark.desktop
def test_files_and_home_are_shown(tmp_path):
    spec = SandboxSpec(files={"/etc/greeting": b"hello"}, home=tmp_path, limits={"nofile": 77})
    assert run_inside("cat /etc/greeting; echo -n hi > ~/note; ulimit -n", spec) == "hello77\n"
    assert (tmp_path / "note").read_text() == "hi"


@pytest.mark.desktop
@pytest.mark.parametrize("mode", ["bwrap", "none"])
def test_close_ends_everything_inside(mode):
    before = family()
    script = "trap '' TERM HUP; (setsid sleep 1000 &); sleep 1000 & sleep 1000"
    process = SandboxedProcess(["/bin/bash", "-c", script], SandboxSpec(), mode=mode)
    if mode == "none":  # the one in a session of its own is no descendant of ours any more
        assert wait_until(lambda: len(marked(process)) >= 4)
    assert wait_until(lambda: len(family() - before) >= 2)
    inside = family() - before | set(marked(process))
    process.close()
    assert process.poll() is not None and not marked(process)
    assert all(gone(pid) for pid in inside)
    process.close()


@pytest.mark.desktop
@pytest.mark.parametrize("mode", ["bwrap", "none"])
def test_temporary_files_of_programs_go_with_them(mode, tmp_path):
    with open(tmp_path / "said", "wb") as said:
        process = SandboxedProcess(["/bin/sh", "-c", "mktemp"], SandboxSpec(), mode=mode, stdout=said)
        assert wait_until(lambda: process.poll() is not None)
    path = (tmp_path / "said").read_text().strip()
    assert path
    process.close()
    assert not os.path.exists(path)
