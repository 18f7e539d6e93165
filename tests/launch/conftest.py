import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

FAKE = str(Path(__file__).with_name("fake_command.py"))
ROOT = str(Path(__file__).parents[2])


class Launched:
    """Starts ``verl-gui run`` on the fake command and finds every process that came of it by a mark."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.mark = uuid.uuid4().hex
        self.started: list[subprocess.Popen] = []

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": ROOT, "VERL_GUI_TEST_MARK": self.mark}

    def command(self, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
        run = [
            sys.executable,
            "-m",
            "verl_gui.cli",
            "run",
            "--dir",
            str(self.directory),
            "--grace",
            "5",
            *options,
        ]
        return [*run, "--", sys.executable, FAKE, *arguments]

    def start(self, *arguments: str, options: tuple[str, ...] = (), **popen: object) -> subprocess.Popen:
        popen = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, **popen}
        process = subprocess.Popen(
            self.command(*arguments, options=options), env=self.environment, start_new_session=True, **popen
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, options: tuple[str, ...] = ()) -> tuple[int, str]:
        """Exit status and what a person was told."""
        process = self.start(*arguments, options=options)
        _, said = process.communicate(timeout=90)
        return process.returncode, said

    def log(self) -> str:
        path = self.directory / "train.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_log(self, text: str) -> None:
        self.wait_until(lambda: text in self.log(), f"{text!r} in the log")

    @staticmethod
    def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
            time.sleep(0.05)

    def alive(self) -> dict[int, str]:
        """Every live process with the mark in its environment: id and command line."""
        needle = f"VERL_GUI_TEST_MARK={self.mark}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z" and needle in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def find(self, text: str, without: str = "\0") -> int:
        """The id of the one process whose command line holds ``text``."""
        (pid,) = [pid for pid, line in self.alive().items() if text in line and without not in line]
        return pid


@pytest.fixture
def launched(tmp_path):
    launched = Launched(tmp_path / "run")
    yield launched
    for pid in launched.alive():  # only when a test failed
        os.kill(pid, signal.SIGKILL)
    for process in launched.started:
        process.wait(10)
