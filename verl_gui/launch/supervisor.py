"""Start a training command, show how it goes, end it cleanly, write its report."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from verl_gui.launch import leftovers, processes
from verl_gui.launch.display import Display, make_display
from verl_gui.launch.failure import first_cause
from verl_gui.launch.follow import Follower
from verl_gui.launch.phases import PhaseTracker
from verl_gui.report import metrics

logger = logging.getLogger(__name__)

LOG_FILE = "train.log"
RUN_FILE = "run.json"

_LOOK_EVERY_SECONDS = 0.2
_GUARD_EXTRA_SECONDS = 40.0  # what the guard may need beyond the command's grace


def run(
    command: Sequence[str],
    directory: str | os.PathLike[str],
    *,
    total_steps: int | None = None,
    show: Sequence[str] = (),
    verbose: bool = False,
    grace_seconds: float = 30.0,
) -> int:
    """Run ``command`` and return its exit status, 128 + N when signal N killed it.

    When this returns, nothing that the command started is left running, whether it ended, crashed or was
    interrupted. ``directory`` then holds ``train.log``, ``metrics.jsonl`` (when verl's ``file`` logger is
    on), ``run.json`` and ``report.html``; the files of an earlier run there are kept under numbered names.

    Args:
        command: program and arguments, normally ``python -m verl.trainer.main_ppo …``.
        directory: the run's directory; made when missing.
        total_steps: number of steps for the progress bar; without it, what the command line or the log says.
        show: metric names for the progress bar in place of the success rates.
        verbose: copy the log to standard error.
        grace_seconds: time the command gets to end after Ctrl-C before it is killed.

    Raises:
        ValueError: ``command`` is empty.
    """
    if not command:
        raise ValueError(
            "no command to run; put it after --, as in: verl-gui run --dir outputs/x -- python …"
        )
    directory = Path(directory).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    for name in (metrics.METRICS_FILE, LOG_FILE):
        _set_aside(directory / name)
    started = time.time()
    _write_run_file(directory, command, started)
    display = make_display(total_steps or _steps_on(command), show)
    running = _Run(command, directory, display, verbose, grace_seconds)
    try:
        status = running.follow()
    finally:
        display.close()
    _write_run_file(directory, command, started, ended=time.time(), status=status)
    if running.stopped:
        sys.stderr.write(f"stopped; log: {directory / LOG_FILE}\n")
    elif status != 0:
        _explain(directory, status)
    _report(directory)
    return status


class _Run:
    """The running command, from start to the last of its processes."""

    def __init__(
        self, command: Sequence[str], directory: Path, display: Display, verbose: bool, grace_seconds: float
    ) -> None:
        self.command = list(command)
        self.directory = directory
        self.display = display
        self.verbose = verbose
        self.grace_seconds = grace_seconds
        self.stopped = False  # by a signal to us
        self._log = Follower(directory / LOG_FILE)
        self._metrics = Follower(directory / metrics.METRICS_FILE)
        self._phases = PhaseTracker()
        self._guard: subprocess.Popen[bytes] | None = None
        self._scratch = leftovers.make_scratch()
        self._pending: list[int] = []  # signals that came before the guard was there

    def follow(self) -> int:
        """Start, show, wait, clean up."""
        earlier = {process.pid for process in processes.descendants(os.getpid())}
        lifeline, our_end = os.pipe()
        with self._signals_passed_on():
            processes.become_subreaper()
            try:
                with open(self.directory / LOG_FILE, "wb") as log:
                    self._guard = self._start_guard(lifeline, log.fileno())
                os.close(lifeline)
                for number in self._pending:
                    self._guard.send_signal(number)
                self.display.phase(self._phases.phase)
                while self._guard.poll() is None:
                    self._look()
                    time.sleep(_LOOK_EVERY_SECONDS)
                self._look(to_the_end=True)
                return 128 - self._guard.returncode if self._guard.returncode < 0 else self._guard.returncode
            finally:
                os.close(our_end)  # stops the guard, were it still there
                self._end_everything(earlier)
                processes.become_subreaper(False)

    def _start_guard(self, lifeline: int, log: int) -> subprocess.Popen[bytes]:
        options = ["--grace", str(self.grace_seconds), "--lifeline", str(lifeline)]
        options += ["--scratch", str(self._scratch)]
        options += ["--ray-logs", str(self.directory / "ray-logs")]
        return subprocess.Popen(
            [sys.executable, "-m", "verl_gui.launch.guard", *options, "--", *self.command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment(self.directory, self._scratch),
            pass_fds=[lifeline],
            start_new_session=True,  # the terminal's Ctrl-C reaches the supervisor alone
        )

    def _end_everything(self, earlier: set[int]) -> None:
        """Wait for the guard, then end what fell to us because the guard was killed: normally nothing."""
        if self._guard is not None:
            try:
                self._guard.wait(self.grace_seconds + _GUARD_EXTRA_SECONDS)
            except subprocess.TimeoutExpired:
                logger.error("the guard process %d hangs; killing it and all below it", self._guard.pid)
                self._guard.kill()
                self._guard.wait()

        def ours() -> list[processes.Process]:
            return processes.descendants(os.getpid(), but_not=earlier)

        orphans = ours()
        processes.terminate(ours, grace_seconds=5, reap=lambda: _reap(orphans))
        _reap(orphans)
        if self._scratch.exists():
            leftovers.remove_scratch(self._scratch)

    def _look(self, *, to_the_end: bool = False) -> None:
        """Take in what was written since the last look."""
        for line in self._log.lines(to_the_end=to_the_end):
            if self.verbose:
                self.display.message(line)
            if self._phases.feed(line):
                self.display.phase(self._phases.phase)
        if self._phases.total_steps is not None:
            self.display.total(self._phases.total_steps)
            self._phases.total_steps = None
        for line in self._metrics.lines(to_the_end=to_the_end):
            if (parsed := metrics.parse_line(line)) is not None:
                self.display.step(*parsed)
        self.display.tick()

    @contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """Hand SIGINT, SIGTERM and SIGHUP to the guard instead of dying of them."""
        if threading.current_thread() is not threading.main_thread():
            yield  # signals are not ours to handle
            return

        def pass_on(number: int, _: FrameType | None) -> None:
            self.stopped = True
            number = signal.SIGTERM if number == signal.SIGHUP else number
            if self._guard is None:
                self._pending.append(number)
            elif self._guard.returncode is None:
                self.display.message("stopping; press Ctrl-C again to kill at once")
                self._guard.send_signal(number)

        before = {
            number: signal.signal(number, pass_on)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def environment(directory: Path, scratch: Path) -> dict[str, str]:
    """The command's environment: where its metrics and temporary files go.

    ``TMPDIR`` also moves Ray's session directory, so a run neither joins nor disturbs another Ray on this
    machine; set ``RAY_ADDRESS`` to use a running cluster.
    """
    return {
        **os.environ,
        "VERL_FILE_LOGGER_PATH": str(directory / metrics.METRICS_FILE),
        "VERL_GUI_RUN_DIR": str(directory),
        "TENSORBOARD_DIR": str(directory / "tensorboard"),
        "TMPDIR": str(scratch),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


def _reap(orphans: list[processes.Process]) -> None:
    for process in orphans:
        try:
            os.waitpid(process.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else's child
            continue


def _set_aside(path: Path) -> None:
    """Rename an earlier run's file to the next free name: ``metrics.jsonl`` to ``metrics-1.jsonl``."""
    if not path.exists() or path.stat().st_size == 0:
        return
    number = 1
    while (other := path.with_name(f"{path.stem}-{number}{path.suffix}")).exists():
        number += 1
    path.rename(other)


def _steps_on(command: Sequence[str]) -> int | None:
    """``trainer.total_training_steps`` when the command line sets it."""
    for argument in reversed(command):
        name, _, number = argument.lstrip("+").partition("=")
        if name == "trainer.total_training_steps" and number.isdigit():
            return int(number)
    return None


def _write_run_file(
    directory: Path,
    command: Sequence[str],
    started: float,
    *,
    ended: float | None = None,
    status: int | None = None,
) -> None:
    """What the report says about the run as a whole. Times are Unix seconds."""
    from verl_gui.launch.versions import installed

    facts = {"command": list(command), "started": started, "ended": ended, "exit_status": status}
    facts["versions"] = installed()
    temporary = directory / f"{RUN_FILE}.new"
    temporary.write_text(json.dumps(facts, indent=1) + "\n")
    temporary.replace(directory / RUN_FILE)


def _explain(directory: Path, status: int) -> None:
    """Say on standard error why the command failed and where to read more."""
    log = directory / LOG_FILE
    with open(log, encoding="utf-8", errors="replace") as lines:
        cause = first_cause(lines)
    said = f"\nThe command failed with exit status {status}"
    if status > 128 and (name := signal.strsignal(status - 128)) is not None:
        said += f" ({name}{'; out of memory?' if status == 128 + signal.SIGKILL else ''})"
    said += ".\n"
    if cause is not None:
        said += f"\n    {cause.error}\n\n"
        said += f"raised at {cause.where}\n" if cause.where else ""
        said += f"in {cause.source}\n" if cause.source else ""
        said += f"line {cause.line} of the log\n"
    said += f"log: {log}\n"
    if (directory / "ray-logs").is_dir():
        said += f"Ray's own logs: {directory / 'ray-logs'}\n"
    sys.stderr.write(said)


def _report(directory: Path) -> None:
    """Write the report; a report that fails must not change how the run ended."""
    from verl_gui.report import build_report

    if not (directory / metrics.METRICS_FILE).exists():
        sys.stderr.write("No metrics were written; add trainer.logger=[console,file] to see curves.\n")
    try:
        path = build_report(directory)
    except (OSError, ValueError) as error:
        logger.error("the report could not be written: %s", error)
    else:
        sys.stderr.write(f"report: {path}\n")
