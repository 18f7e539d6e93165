"""What the tests with real displays share: looking for what environments leave behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from verl_gui.envs.leftovers import owned_name


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def family(pid=None):
    """Process numbers of all descendants."""
    return {process.pid for process in psutil.Process(pid).children(recursive=True)}


def footprint():
    """What this process holds on the machine: descendants, descriptors, directories, control groups."""
    return {
        "processes": family(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "directories": directories_of(os.getpid()),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "shared memory": Path("/proc/sysvipc/shm").read_text().count("\n"),
    }


def directories_of(pid):
    """Directories and control groups that the process ``pid`` made for its environments."""
    namespace = owned_name("x").split("-x-")[1].split("-")[0]
    places = [Path(tempfile.gettempdir()), Path("/dev/shm"), Path("/sys/fs/cgroup")]
    places += [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/pids")]
    return sorted(str(path) for place in places for path in place.glob(f"verl-gui-*-{namespace}-{pid}-*"))


def x_leftovers(display):
    number = display.removeprefix(":")
    return [path for path in (f"/tmp/.X11-unix/X{number}", f"/tmp/.X{number}-lock") if os.path.exists(path)]


def run_and_kill(code, number=signal.SIGKILL):
    """Run Python ``code``, which prints a JSON value when it is ready, and send it the signal ``number``.

    Returns that value, its process number and the descendants it had, all of which were alive.
    """
    # Whoever started the tests may have had Ctrl-C ignored (a shell does that to jobs in the background).
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    parent = subprocess.Popen(
        [sys.executable, "-c", heed + code + "\nimport time; time.sleep(1000)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        line = parent.stdout.readline()
        assert line, "the process ended before it was ready"
        descendants = family(parent.pid)
        parent.send_signal(number)
        parent.wait(30)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    return json.loads(line), parent.pid, descendants
