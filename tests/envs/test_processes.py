import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from verl_gui.envs import processes

ENV = {"PATH": "/usr/bin:/bin"}


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_stop_ends_the_whole_group():
    process = processes.start(["/bin/bash", "-c", "sleep 1000 & sleep 1000 & wait"], env=ENV)
    assert wait_until(lambda: len(psutil.Process(process.pid).children()) == 2)
    children = psutil.Process(process.pid).children()
    processes.stop(process)
    assert process.returncode is not None
    assert all(gone(child.pid) for child in children)
    processes.stop(process)


def test_stop_kills_what_ignores_sigterm():
    process = processes.start(["/bin/bash", "-c", "trap '' TERM; while :; do sleep 0.1; done"], env=ENV)
    time.sleep(0.2)
    processes.stop(process, term_s=0.2)
    assert process.returncode == -signal.SIGKILL


def test_stop_leaves_alone_what_has_been_reaped(monkeypatch):
    process = processes.start(["true"], env=ENV)
    process.wait(10)
    signalled = []
    monkeypatch.setattr(os, "killpg", lambda *call: signalled.append(call))
    processes.stop(process)
    assert signalled == []  # the number may be a stranger's by now


@pytest.mark.parametrize("mark", ["", "=", "NAME", "NAME=", "=value"])
def test_a_mark_that_is_in_every_process_is_refused(mark):
    with pytest.raises(ValueError, match="NAME=value"):
        processes.kill_marked(mark)


def test_child_survives_the_thread_that_asked_for_it():
    started = []
    thread = threading.Thread(target=lambda: started.append(processes.start(["sleep", "1000"], env=ENV)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    assert started[0].poll() is None
    processes.stop(started[0])


def test_child_dies_with_a_killed_parent():
    code = (
        "import threading, time\nfrom verl_gui.envs import processes\n"
        "def go(): print(processes.start(['sleep', '1000'], env={'PATH': '/usr/bin:/bin'}).pid, flush=True)\n"
        "thread = threading.Thread(target=go); thread.start(); thread.join(); time.sleep(1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child = int(parent.stdout.readline())
    time.sleep(0.2)
    assert not gone(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: gone(child))


def test_missing_program_is_told_to_the_caller():
    with pytest.raises(FileNotFoundError):
        processes.start(["/no/such/program"], env=ENV, death_signal=None)


def test_read_until():
    reader, writer = os.pipe()
    os.write(writer, b"12\nrest")
    assert processes.read_until(reader, b"\n", 1.0) == b"12\n"
    with pytest.raises(TimeoutError):
        processes.read_until(reader, b"\n", 0.05)
    os.close(writer)
    with pytest.raises(EOFError):
        processes.read_until(reader, b"\n", 1.0)
    os.close(reader)


def test_child_ends_of_pipes_have_high_numbers():
    ours, child = processes.pipe_to_child(child_writes=True)
    os.write(child, b"x")
    assert child >= 10 and os.read(ours, 1) == b"x"
    os.close(ours)
    os.close(child)
