"""Windows, by way of wmctrl and xdotool."""

import subprocess
import time

_TIMEOUT_S = 10.0


def _run(*command: str) -> tuple[int, str]:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    return answer.returncode, answer.stdout


def titles() -> list[str]:
    """One line for each window: number, desktop, class, host, title."""
    code, output = _run("wmctrl", "-l", "-x")
    return output.splitlines() if code == 0 else []


def _act(action: str, name: str, strict: bool, by_class: bool) -> bool:
    options = (["-x"] if by_class else []) + (["-F"] if strict else [])
    return _run("wmctrl", *options, action, name)[0] == 0


def activate(name: str, strict: bool = False, by_class: bool = False) -> bool:
    """Raise the window whose title (or class) holds ``name``; whether there is one."""
    return _act("-a", name, strict, by_class)


def close(name: str, strict: bool = False, by_class: bool = False) -> bool:
    """Ask the window whose title (or class) holds ``name`` to close; whether there is one."""
    return _act("-c", name, strict, by_class)


def size_of_class(name: str) -> tuple[int, int] | None:
    """Width and height of a window of this class; None if there is none."""
    code, output = _run("xdotool", "search", "--onlyvisible", "--class", name)
    if code or not output.split():
        return None
    _, geometry = _run("xdotool", "getwindowgeometry", "--shell", output.split()[-1])
    values = dict(line.split("=", 1) for line in geometry.split() if "=" in line)
    return int(values["WIDTH"]), int(values["HEIGHT"])


def pointer() -> tuple[int, int]:
    """Where the pointer is."""
    _, output = _run("xdotool", "getmouselocation", "--shell")
    values = dict(line.split("=", 1) for line in output.split() if "=" in line)
    return int(values["X"]), int(values["Y"])


def wait_for_new(before: list[str], timeout_s: float) -> bool:
    """Wait until there is a window that is not in ``before`` (lines of :func:`titles`); whether one came."""
    known = {line.split()[0] for line in before}
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if any(line.split()[0] not in known for line in titles()):
            return True
        time.sleep(0.05)
    return False
