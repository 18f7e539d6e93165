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

_READY = "ready"
_JOBS_INSIDE = "/run/jobs"
_JOBS_BYTES = 64 << 20
_START_TIMEOUT_S = 20.0

# Reads job names from descriptor 3, runs each as a command of its own and reports "job exit-code" on
# descriptor 4; the first report says that it runs. It ends when the host closes the pipe, and everything
# inside ends with it.
_AGENT = f"""
cd "$HOME"
echo "{_READY} 0" >&4
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

    Home and the commands' output lie in memory of bounded size, which the host reaches through descriptors:
    nothing that runs inside can fill the host's disk, and nothing is left there. Without bubblewrap both are
    directories of the host, without a bound.

    Args:
        xserver: the display that its programs use.
        mode: sandbox mode.
        memory_bytes: limit on the memory of everything inside.
        process_count: limit on the number of processes and threads inside.
        file_bytes: limit on the size of one file.
        home_bytes: size of the home directory.

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
        home_bytes: int,
    ) -> None:
        inside = mode == "bwrap"
        self._host_directory = None if inside else private_directory("desktop")
        self._home_path, self._jobs_path = HOME, _JOBS_INSIDE
        if self._host_directory is not None:
            self._home_path, self._jobs_path = (str(self._host_directory / name) for name in ("home", "jobs"))
            for path in (self._home_path, self._jobs_path):
                os.mkdir(path, mode=0o700)
        self._home_fd = self._jobs_fd = -1
        self._results: dict[str, int] = {}
        self._pending = b""
        self._job_count = 0
        self._fds: list[int] = []
        self._process: SandboxedProcess | None = None
        self._cgroup = ControlGroup.create(memory_bytes=memory_bytes, processes=process_count)
        spec = SandboxSpec(
            read_only={
                str(xserver.socket_path): str(xserver.socket_path),
                str(xserver.authority): "/run/Xauthority",
            },
            home=None if inside else Path(self._home_path),
            home_bytes=home_bytes,
            volumes={_JOBS_INSIDE: _JOBS_BYTES},
            cgroup=self._cgroup,
            limits={"fsize": file_bytes, "nofile": 4096} | ({} if self._cgroup else {"data": memory_bytes}),
            env={
                "DISPLAY": xserver.display,
                "XAUTHORITY": "/run/Xauthority" if inside else str(xserver.authority),
                "JOBS": self._jobs_path,
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
        try:
            self._wait_for(_READY, time.monotonic() + _START_TIMEOUT_S)
            self._home_fd = self._process.open_directory(self._home_path)
            self._jobs_fd = self._process.open_directory(self._jobs_path)
        except EnvFailure as failure:
            self.close()
            raise EnvFailure("reset", f"the sandbox of the desktop does not start: {failure}") from failure

    def start(self, command: Sequence[str]) -> str:
        """Start a command without waiting for it; returns its job name."""
        self._job_count += 1
        job = str(self._job_count)
        try:
            directory = _path_of(self._jobs_fd) / job
            directory.mkdir()
            (directory / "command").write_text("exec " + _quote(command) + "\n")
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
        code = self._wait_for(job, time.monotonic() + timeout_s + 5.0)
        out, err = (_output(self._jobs_fd, f"{job}/{name}") for name in ("out", "err"))
        shutil.rmtree(_path_of(self._jobs_fd) / job, ignore_errors=True)
        return CommandResult(code, out, err)

    def _wait_for(self, job: str, deadline: float) -> int:
        """Exit code of a job."""
        while job not in self._results:
            self._read_reports(deadline)
        return self._results.pop(job)

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

    def seen_inside(self, path: str) -> str:
        """The name that programs inside know ``path`` (in the home directory) by.

        Raises:
            GuestFileError: it lies elsewhere.
        """
        return f"{self._home_path}/{self.relative(path)}"

    def read_file(self, path: str) -> bytes:
        """Contents of a regular file in the home directory. Links are not followed: the guest made them.

        Raises:
            GuestFileError: no such file, not a regular file, not in the home directory, or over 4 MiB.
        """
        return _read_beneath(self._home_fd, self.relative(path))

    def write_file(self, path: str, content: bytes) -> None:
        """Create a file, with its directories, in the home directory (before the guest's programs run).

        Raises:
            GuestFileError: it lies elsewhere, or cannot be written.
        """
        target = _path_of(self._home_fd) / self.relative(path)
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
            (_path_of(self._home_fd) / self.relative(path)).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise GuestFileError(f"cannot create {path!r}: {error}") from error

    def kind_of(self, path: str) -> Literal["file", "directory", "other"] | None:
        """What lies at ``path`` in the home directory; None if nothing does."""
        try:
            with _open_beneath(self._home_fd, self.relative(path)) as fd:
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

    def pause(self) -> None:
        """Stop everything inside until :meth:`resume`."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Let everything inside go on."""
        if self._process is not None:
            self._process.resume()

    def close(self) -> None:
        """Kill everything inside and remove its files. Safe to call again."""
        for fd in (*self._fds, self._home_fd, self._jobs_fd):
            if fd >= 0:
                os.close(fd)
        self._fds = []
        self._home_fd = self._jobs_fd = -1
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._cgroup is not None:
            self._cgroup.close()
            self._cgroup = None
        if self._host_directory is not None:
            shutil.rmtree(self._host_directory, ignore_errors=True)


def _quote(command: Sequence[str]) -> str:
    """The command as one line of shell, each word in single quotes."""
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in command)


def _path_of(directory: int) -> Path:
    """A name for what an open descriptor stands for."""
    return Path(f"/proc/self/fd/{directory}")


@contextlib.contextmanager
def _open_beneath(directory: int, relative: str) -> Iterator[int]:
    """Open a path beneath an open directory, one part after the other, without ever following a link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(".", flags | os.O_DIRECTORY, dir_fd=directory)
    try:
        for part in PurePosixPath(relative).parts:
            inner = os.open(part, flags, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _output(jobs: int, relative: str) -> str:
    """What a command wrote, as far as there was room for it; the guest may have removed it."""
    try:
        return _read_beneath(jobs, relative).decode(errors="replace")
    except GuestFileError:
        return ""


def _read_beneath(directory: int, relative: str) -> bytes:
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
