"""Where the programs of an environment run: bubblewrap, or a weaker stand-in where it cannot work."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import psutil

from verl_gui.envs import processes
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.cgroups import ControlGroup
from verl_gui.envs.leftovers import owned_name, private_directory

logger = logging.getLogger(__name__)

SandboxMode = Literal["auto", "bwrap", "none"]

HOME = "/home/user"
"""The private home directory inside the bubblewrap sandbox."""

_MARK = "VERL_GUI_SANDBOX"  # in the environment of what runs without a sandbox: nothing else ties it together
_PASSWD = b"user:x:1000:1000:user:/home/user:/bin/sh\n"
_GROUP = b"user:x:1000:\n"
_INFO_TIMEOUT_S = 10.0
_MIB = 1 << 20
_VOLATILE = {"/tmp": 512 * _MIB, "/run": 64 * _MIB, "/dev/shm": 256 * _MIB}
"""Directories in memory that every sandbox has, with their sizes in bytes."""

_SYSTEM_FILES = (
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/gtk-2.0",
    "/etc/gtk-3.0",
    "/etc/ld.so.cache",
    "/etc/libreoffice",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/xdg",
    "/etc/X11",
    "/var/cache/fontconfig",  # without it the first program of every sandbox spends seconds on fonts
)
"""System settings that programs read, shown read-only where they exist; nothing private is among them."""


def _isolation() -> list[str]:
    """The namespaces: own users, processes, network (empty), IPC, host name; no capabilities, no terminal."""
    options = ["--unshare-user", "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    options += ["--uid", "1000", "--gid", "1000", "--hostname", "desktop"]
    if "--disable-userns" in _bwrap_help():
        options.append("--disable-userns")
    options += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            options += ["--ro-bind", str(path), str(path)]
    return [*options, "--proc", "/proc", "--dev", "/dev"]


@functools.cache
def _bwrap_help() -> str:
    answer = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, timeout=10, check=False)
    return answer.stdout + answer.stderr


@functools.cache
def bwrap_problem() -> str | None:
    """Why bubblewrap cannot be used on this machine, or None if it can (tried once a process)."""
    if shutil.which("bwrap") is None:
        return "bwrap is not installed (package bubblewrap)"
    try:
        trial = subprocess.run(
            ["bwrap", *_isolation(), "--", "true"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if trial.returncode == 0 else f"bwrap failed: {trial.stderr.strip()[-300:]}"


def choose_mode(wanted: SandboxMode) -> Literal["bwrap", "none"]:
    """The mode to use.

    ``auto`` takes bubblewrap where user namespaces work. Without it the programs run as ordinary processes of
    this user: with the network and the files of this user in reach. That is said in a warning each time.

    Raises:
        EnvFailure: ``reset``; ``bwrap`` was asked for and does not work.
        ValueError: unknown mode.
    """
    if wanted not in ("auto", "bwrap", "none"):
        raise ValueError(f"unknown sandbox mode {wanted!r}; expected 'auto', 'bwrap' or 'none'")
    problem = bwrap_problem() if wanted != "none" else "it is switched off"
    if problem is None:
        return "bwrap"
    if wanted == "bwrap":
        raise EnvFailure("reset", f"the bubblewrap sandbox does not work here: {problem}")
    logger.warning(
        "NO SANDBOX (%s): the programs that the model controls can read this user's files and use the "
        "network. Use this only on a machine that holds nothing of value.",
        problem,
    )
    return "none"


@dataclass
class SandboxSpec:
    """What a program in the sandbox sees beside the system's own programs.

    Attributes:
        read_only: host path → path inside, read-only.
        files: path inside → contents, for small read-only files.
        env: environment variables beside HOME, PATH and LANG.
        home: host directory that is the private home inside; None gives an empty one in memory, of
            ``home_bytes`` (without bubblewrap: an empty one on the host's disk).
        home_bytes: size of a home in memory. What the programs write there can fill neither the host's disk
            nor, beyond this, its memory.
        volumes: path inside → size in bytes, for further directories in memory.
        shared: host directories that have the same path inside, writable.
        cgroup: control group with limits for everything inside; None for no such limits.
        limits: ``prlimit`` resources, such as ``{"nproc": 256}``.
    """

    read_only: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    home: Path | None = None
    home_bytes: int = 256 * _MIB
    volumes: dict[str, int] = field(default_factory=dict)
    shared: tuple[Path, ...] = ()
    cgroup: ControlGroup | None = None
    limits: dict[str, int] = field(default_factory=dict)


class SandboxedProcess:
    """A program in a sandbox, with everything it starts.

    Args:
        command: program and arguments, as seen inside.
        spec: what it sees. Without bubblewrap nothing can be hidden or shown elsewhere: ``read_only`` and
            ``files`` are ignored.
        mode: ``bwrap`` or ``none``.
        pass_fds: descriptors it inherits, as they are.
        stdout: where its output goes.

    Raises:
        EnvFailure: ``reset``; it cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        spec: SandboxSpec,
        *,
        mode: Literal["bwrap", "none"],
        pass_fds: Sequence[int] = (),
        stdout: IO[bytes] | int = subprocess.DEVNULL,
    ) -> None:
        self.mode = mode
        self._init_fd: int | None = None  # pidfd of the first process inside: when it is gone, all are
        self._init_pid = 0
        self._cgroup = spec.cgroup
        self._home: Path | None = None
        self._temporary: Path | None = None
        self._mark = f"{_MARK}={owned_name('sandbox')}"
        env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **spec.env}
        limits = ["prlimit", "--core=0", *(f"--{name}={value}" for name, value in spec.limits.items()), "--"]
        prefix = spec.cgroup.enter_command() if spec.cgroup else []
        try:
            if mode == "none":
                if spec.home is None:
                    self._home = private_directory("home")
                env[_MARK] = self._mark.partition("=")[2]
                env["HOME"] = home = str(spec.home or self._home)
                if "TMPDIR" not in env:  # what programs leave in /tmp would stay there
                    self._temporary = private_directory("tmp")
                    env["TMPDIR"] = str(self._temporary)
                self._process = processes.start(
                    [*prefix, *limits, *command], env=env, pass_fds=pass_fds, stdout=stdout, cwd=home
                )
            else:
                self._start_bwrap(prefix, [*limits, *command], spec, env, pass_fds, stdout)
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise EnvFailure("reset", f"cannot start {command[0]}: {error}") from error

    def _start_bwrap(
        self,
        prefix: Sequence[str],
        command: Sequence[str],
        spec: SandboxSpec,
        env: Mapping[str, str],
        pass_fds: Sequence[int],
        stdout: IO[bytes] | int,
    ) -> None:
        with contextlib.ExitStack() as stack:
            options = _isolation()
            inherited = list(pass_fds)
            for system_file in _SYSTEM_FILES:
                options += ["--ro-bind-try", system_file, system_file]
            home = {} if spec.home else {HOME: spec.home_bytes}
            for directory, size in (_VOLATILE | home | spec.volumes).items():
                options += ["--size", str(size), "--tmpfs", directory]
            if spec.home:
                options += ["--bind", str(spec.home), HOME]
            options += ["--dir", "/run/user/1000"]
            for host, inside in spec.read_only.items():
                options += ["--ro-bind", host, inside]
            for path in spec.shared:
                options += ["--bind", str(path), str(path)]
            for inside, content in {"/etc/passwd": _PASSWD, "/etc/group": _GROUP, **spec.files}.items():
                fd = _memory_file(content)
                stack.callback(os.close, fd)
                inherited.append(fd)
                options += ["--ro-bind-data", str(fd), inside]
            options += ["--chdir", HOME, "--clearenv"]
            inside_env = {"HOME": HOME, "USER": "user", "XDG_RUNTIME_DIR": "/run/user/1000", **env}
            for name, value in inside_env.items():
                options += ["--setenv", name, value]
            info_reader, info_writer = os.pipe()
            stack.callback(os.close, info_reader)
            try:
                self._process = processes.start(
                    [*prefix, "bwrap", *options, "--info-fd", str(info_writer), "--", *command],
                    env={"PATH": os.environ.get("PATH", "/usr/bin:/bin")},
                    pass_fds=[*inherited, info_writer],
                    stdout=stdout,
                )
            finally:
                os.close(info_writer)
            info = json.loads(processes.read_until(info_reader, b"}", _INFO_TIMEOUT_S))
            self._init_pid = info["child-pid"]
            with contextlib.suppress(ProcessLookupError):  # ended already: poll() will say so
                self._init_fd = os.pidfd_open(self._init_pid)

    def open_directory(self, path: str) -> int:
        """A descriptor of a directory inside; to be closed by the caller.

        To be called when the first program inside runs (the directories are there then), and before anything
        that is not trusted runs, which could put a link in its place.

        Raises:
            EnvFailure: ``reset``; it cannot be opened, or nothing runs inside any more.
        """
        root = f"/proc/{self._init_pid}/root" if self.mode == "bwrap" else ""
        try:
            fd = os.open(root + path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise EnvFailure("reset", f"cannot open {path} of the sandbox: {error}") from error
        # A process number is used again; while ours is alive, it was ours that was opened.
        if self.mode == "bwrap" and (self._init_fd is None or select.select([self._init_fd], [], [], 0)[0]):
            os.close(fd)
            raise EnvFailure("reset", "the sandbox ended while it was being set up")
        return fd

    def pause(self) -> None:
        """Stop everything inside until :meth:`resume`; it can still be killed.

        By SIGSTOP, not by the freezer of control groups: what version 1 of that has frozen survives SIGKILL,
        so a sandbox would outlive a killed parent.
        """
        stopped: set[int] = set()
        # Parents first: a shell that sees its child stop would tell its user.
        while fresh := [pid for pid in self._members() if pid not in stopped]:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            stopped.update(fresh)

    def resume(self) -> None:
        """Undo :meth:`pause`; without effect on what is not paused."""
        for pid in reversed(self._members()):
            _signal(pid, signal.SIGCONT)

    def _members(self) -> list[int]:
        """Numbers of all processes of the sandbox, parents before children (numbers grow)."""
        if self._cgroup is not None:
            return self._cgroup.members()
        try:
            outermost = psutil.Process(self.pid)
            found = {self.pid, *(process.pid for process in outermost.children(recursive=True))}
        except psutil.NoSuchProcess:
            found = set()
        if self.mode == "none":
            found.update(processes.find_marked(self._mark))
        return sorted(found)

    @property
    def pid(self) -> int:
        """Process number of the outermost process (also its process group)."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code if it has ended, else None."""
        return self._process.poll()

    @property
    def host_process(self) -> subprocess.Popen[bytes]:
        """The outermost process, as seen from the host."""
        return self._process

    def close(self) -> None:
        """Kill everything inside and wait until it is gone. Safe to call again."""
        if self._init_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init_fd, signal.SIGKILL)
            select.select([self._init_fd], [], [], 10.0)
            os.close(self._init_fd)
            self._init_fd = None
        process = getattr(self, "_process", None)
        if process is not None:
            processes.stop(process, term_s=0)
            if self.mode == "none":
                processes.kill_marked(self._mark)
        for directory in (self._home, self._temporary):
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
        self._home = self._temporary = None


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # ended meanwhile
        os.kill(pid, number)


def _memory_file(content: bytes) -> int:
    """A descriptor from which ``content`` can be read once."""
    fd = os.memfd_create("verl-gui")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
