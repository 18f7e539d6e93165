"""The inside of a desktop: a sandbox in which programs are started and commands are run, all in one place."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from verl_gui.envs import processes
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.cgroups import ControlGroup
from verl_gui.envs.leftovers import private_directory
from verl_gui.envs.sandbox import HOME, SandboxedProcess, SandboxSpec
from verl_gui.envs.xserver import XServer

_MAX_OUTPUT = 4 << 20  # bytes read of a file or of a command's output

# Reads job names from descriptor 3, runs each as a command of its own and reports "job exit-code" on
# descriptor 4. It ends when the host closes the pipe, and everything inside ends with it.
_AGENT = """
cd "$HOME"
while IFS= read -r -u 3 job; do
  (
    code=0
    exec </dev/null >"$JOBS/$job/out" 2>"$JOBS/$job/err"
    setsid -w /bin/bash "$JOBS/$job/command" 4>&- || code=$?
    echo "$job $code" >&4
  ) 3<&- &
done
"""


@dataclass(frozen=True)
class CommandResult:
    """How a command in the guest ended: exit code, output and error output (both cut after 4 MiB)."""

    code: int
    output: str
    error: str


class GuestFileError(OSError):
    """A file of the guest cannot be used; the guest is at fault, not the environment."""


class Guest:
    """One sandbox with a private home directory.

    Args:
        xserver: the display that its programs use.
        mode: sandbox mode.
        memory_bytes: limit on the memory of everything inside.
        process_count: limit on the number of processes and threads inside.
        file_bytes: limit on the size of one file.

    Raises:
        EnvFailure: ``reset``; it does not start.
    """

    def __init__(
        self,
        xserver: XServer,
        *,
        mode: Literal["bwrap", "none"],
        memory_bytes: int,
        process_count: int,
        file_bytes: int,
    ) -> None:
        self.mode = mode
        self._directory = private_directory("desktop")
        self.home = self._directory / "home"
        self._jobs = self._directory / "jobs"
        self.home.mkdir(mode=0o700)
        self._jobs.mkdir(mode=0o700)
        self._results: dict[str, int] = {}
        self._pending = b""
        self._job_count = 0
        self._fds: list[int] = []
        self._process: SandboxedProcess | None = None
        self._cgroup = ControlGroup.create(memory_bytes=memory_bytes, processes=process_count)
        inside = mode == "bwrap"
        spec = SandboxSpec(
            read_only={
                str(xserver.socket_path): str(xserver.socket_path),
                str(xserver.authority): "/run/Xauthority",
            },
            home=self.home,
            shared=(self._jobs,),
            cgroup=self._cgroup,
            limits={"fsize": file_bytes, "nofile": 4096} | ({} if self._cgroup else {"data": memory_bytes}),
            env={
                "DISPLAY": xserver.display,
                "XAUTHORITY": "/run/Xauthority" if inside else str(xserver.authority),
                "JOBS": str(self._jobs),
                "XDG_SESSION_TYPE": "x11",
                "XDG_CURRENT_DESKTOP": "openbox",
                "GSETTINGS_BACKEND": "memory",
                "GIO_USE_VFS": "local",
                "GTK_USE_PORTAL": "0",
                "NO_AT_BRIDGE": "1",
                "DBUS_SESSION_BUS_ADDRESS": "disabled:",
                "DBUS_SYSTEM_BUS_ADDRESS": "disabled:",
            },
        )
        self._commands, commands_in = processes.pipe_to_child(child_writes=False)
        self._reports, reports_in = processes.pipe_to_child(child_writes=True)
        self._fds = [self._commands, self._reports]
        try:
            agent = f"exec 3<&{commands_in} 4>&{reports_in} {commands_in}<&- {reports_in}>&-\n{_AGENT}"
            self._process = SandboxedProcess(
                ["/bin/bash", "-c", agent, "agent"], spec, mode=mode, pass_fds=[commands_in, reports_in]
            )
        except EnvFailure:
            self.close()
            raise
        finally:
            os.close(commands_in)
            os.close(reports_in)

    def start(self, command: Sequence[str]) -> str:
        """Start a command without waiting for it; returns its job name."""
        self._job_count += 1
        job = str(self._job_count)
        directory = self._jobs / job
        directory.mkdir()
        (directory / "command").write_text("exec " + _quote(command) + "\n")
        try:
            os.write(self._commands, f"{job}\n".encode())
        except OSError as error:
            raise EnvFailure("dead", f"the sandbox of the desktop is gone: {error}") from error
        return job

    def run(self, command: Sequence[str], *, timeout_s: float) -> CommandResult:
        """Run a command to its end; it is killed after ``timeout_s`` seconds (exit code 124).

        Raises:
            EnvFailure: ``timeout`` or ``dead``; the sandbox does not answer.
        """
        job = self.start(["timeout", "--kill-after=1", f"{timeout_s:g}", *command])
        deadline = time.monotonic() + timeout_s + 5.0
        while job not in self._results:
            self._read_reports(deadline)
        directory = self._jobs / job
        streams = [_read_beneath(directory, name).decode(errors="replace") for name in ("out", "err")]
        shutil.rmtree(directory, ignore_errors=True)
        return CommandResult(self._results.pop(job), *streams)

    def _read_reports(self, deadline: float) -> None:
        if not select.select([self._reports], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise EnvFailure("timeout", "the sandbox of the desktop does not answer")
        data = os.read(self._reports, 4096)
        if not data:
            raise EnvFailure("dead", "the sandbox of the desktop has ended")
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            job, _, code = line.decode().partition(" ")
            self._results[job] = int(code)

    # -- files ----------------------------------------------------------------------------------------

    def relative(self, path: str) -> str:
        """``path`` relative to the home directory.

        Raises:
            GuestFileError: it lies elsewhere.
        """
        pure = PurePosixPath(path.replace("~", HOME, 1) if path.startswith("~") else path)
        parts = (pure if pure.is_absolute() else HOME / pure).parts
        home = PurePosixPath(HOME).parts
        if parts[: len(home)] != home or ".." in parts:
            raise GuestFileError(f"{path!r} is not in the home directory {HOME}")
        return "/".join(parts[len(home) :])

    def read_file(self, path: str) -> bytes:
        """Contents of a regular file in the home directory. Links are not followed: the guest made them.

        Raises:
            GuestFileError: no such file, not a regular file, not in the home directory, or over 4 MiB.
        """
        return _read_beneath(self.home, self.relative(path))

    def write_file(self, path: str, content: bytes) -> None:
        """Create a file, with its directories, in the home directory (before the guest's programs run).

        Raises:
            GuestFileError: it lies elsewhere, or cannot be written.
        """
        target = self.home / self.relative(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            raise GuestFileError(f"cannot write {path!r}: {error}") from error

    def make_directory(self, path: str) -> None:
        """Create a directory in the home directory (before the guest's programs run).

        Raises:
            GuestFileError: it lies elsewhere, or cannot be created.
        """
        try:
            (self.home / self.relative(path)).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GuestFileError(f"cannot create {path!r}: {error}") from error

    def kind_of(self, path: str) -> Literal["file", "directory", "other"] | None:
        """What lies at ``path`` in the home directory; None if nothing does."""
        try:
            with _open_beneath(self.home, self.relative(path)) as fd:
                mode = os.fstat(fd).st_mode
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                return "other" if error.errno == errno.ELOOP else None
            raise
        return "file" if stat.S_ISREG(mode) else "directory" if stat.S_ISDIR(mode) else "other"

    # -- life -----------------------------------------------------------------------------------------

    def alive(self) -> bool:
        """Whether the sandbox runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process number of the outermost process of the sandbox."""
        if self._process is None:
            raise ValueError("the sandbox is closed")
        return self._process.pid

    def close(self) -> None:
        """Kill everything inside and remove its files. Safe to call again."""
        for fd in self._fds:
            os.close(fd)
        self._fds = []
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._cgroup is not None:
            self._cgroup.close()
            self._cgroup = None
        shutil.rmtree(self._directory, ignore_errors=True)


def _quote(command: Sequence[str]) -> str:
    """The command as one line of shell, each word in single quotes."""
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in command)


@contextlib.contextmanager
def _open_beneath(directory: Path, relative: str) -> Iterator[int]:
    """Open a path for reading, one part after the other, without ever following a link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(directory, flags | os.O_DIRECTORY)
    try:
        for part in PurePosixPath(relative).parts:
            inner = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _read_beneath(directory: Path, relative: str) -> bytes:
    try:
        with _open_beneath(directory, relative) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise GuestFileError(f"{relative!r} is not a regular file")
            data = b""
            while len(data) <= _MAX_OUTPUT and (chunk := os.read(fd, 1 << 20)):
                data += chunk
    except GuestFileError:
        raise
    except OSError as error:
        raise GuestFileError(f"cannot read {relative!r}: {error.strerror}") from error
    return data[:_MAX_OUTPUT]
