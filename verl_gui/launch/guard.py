"""Run a command so that nothing outlives it: ``python -m verl_gui.launch.guard [options] -- COMMAND...``

Ray, X servers and browsers start daemons that leave their parent on purpose. The guard is a separate small
process between the supervisor and the command. As a *subreaper* it inherits every such orphan, so when the
command ends, however it ends, everything below the guard can be found and ended. It watches the supervisor
through a pipe (the lifeline) and stops the command when that closes, so even ``kill -9`` of the supervisor
cleans up. If the guard itself is killed, the kernel kills the command and the orphans fall to the
supervisor.

One SIGINT or SIGTERM is passed on to the command, which gets ``--grace`` seconds to end; another one ends
everything at once. The exit status is the command's, 128 + N when signal N killed it.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from verl_gui.launch import leftovers, processes

logger = logging.getLogger("verl_gui.launch.guard")

_WATCH_EVERY_SECONDS = 0.5  # how often new shared memory is looked for
_SWEEP_GRACE_SECONDS = 5.0  # between SIGTERM and SIGKILL for what the command leaves


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; see the module text."""
    parser = argparse.ArgumentParser(prog="verl_gui.launch.guard")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds the command gets to end by itself")
    parser.add_argument("--lifeline", type=int, help="file descriptor whose closing means: stop")
    parser.add_argument("--scratch", type=Path, help="directory to remove at the end")
    parser.add_argument("--ray-logs", type=Path, help="where Ray's logs go when the command fails")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    logging.basicConfig(format="[verl-gui] %(message)s", level=logging.INFO)
    return Guard(options.command, options.grace, options.lifeline, options.scratch, options.ray_logs).run()


class Guard:
    """One guarded command; ``run`` may be called once."""

    def __init__(
        self,
        command: Sequence[str],
        grace_seconds: float,
        lifeline: int | None = None,
        scratch: Path | None = None,
        ray_logs: Path | None = None,
    ) -> None:
        self.command = list(command)
        self.grace_seconds = grace_seconds
        self.lifeline = lifeline
        self.scratch = scratch
        self.ray_logs = ray_logs
        self._signals: list[int] = []  # received, not yet passed on
        self._shared_memory = leftovers.SharedMemoryWatch()
        self._child = 0  # process id of the command
        self._status: int | None = None  # and its wait status, once it has ended

    def run(self) -> int:
        """Run the command, end what it leaves, and return its exit status."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: self._signals.append(received))
        processes.become_subreaper()
        if self.scratch is not None:
            leftovers.own_scratch(self.scratch)
        self._child = self._start()
        self._wait()
        left = processes.descendants(os.getpid())
        if self._status is None:
            logger.warning("the command did not end in time; killing it")
            processes.send(self._child, signal.SIGKILL)
        elif left:
            logger.info("ending what the command left running: %s", ", ".join(map(str, left)))
        stuck = processes.terminate(
            lambda: processes.descendants(os.getpid()), grace_seconds=self._sweep_grace(), reap=self._reap
        )
        if stuck:
            logger.error("these could not be killed: %s", ", ".join(map(str, stuck)))
        status = 0x7F00 if self._status is None else self._status
        self._clean_up([process.pid for process in left], failed=status != 0)
        code = os.waitstatus_to_exitcode(status)
        return 128 - code if code < 0 else code

    def _start(self) -> int:
        parent = os.getpid()
        child = os.fork()  # this process has a single thread
        if child:
            return child
        try:
            os.setsid()
            processes.die_with_parent(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(128 + signal.SIGKILL)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            if self.lifeline is not None:
                os.close(self.lifeline)
            os.execvp(self.command[0], self.command)
        except OSError as error:
            print(
                f"[verl-gui] cannot start {self.command[0]!r}: {error.strerror}", file=sys.stderr, flush=True
            )
        os._exit(127)

    def _wait(self) -> None:
        """Return when the command ended, or when it must be killed."""
        deadline: float | None = None  # set once the command was told to stop
        watch_at = 0.0
        while True:
            self._reap()
            if time.monotonic() >= watch_at:
                self._shared_memory.look(self._pids)
                watch_at = time.monotonic() + _WATCH_EVERY_SECONDS
            if self._status is not None:
                return
            if self._signals:
                received = self._signals.pop(0)
                if deadline is not None:
                    return
                processes.send(self._child, received)
                deadline = time.monotonic() + self.grace_seconds
            if deadline is not None and time.monotonic() > deadline:
                return
            if self.lifeline is None:
                time.sleep(0.05)
            elif select.select([self.lifeline], [], [], 0.05)[0]:
                logger.warning("the supervisor is gone; stopping the command")
                self._signals.append(signal.SIGTERM)
                os.close(self.lifeline)
                self.lifeline = None

    def _reap(self) -> None:
        ended = processes.reap_children()
        if self._child in ended:
            self._status = ended[self._child]

    def _pids(self) -> list[int]:
        return [process.pid for process in processes.descendants(os.getpid())]

    def _sweep_grace(self) -> float:
        """Seconds for the leftovers; none when somebody has asked twice."""
        return 0.5 if self._signals else _SWEEP_GRACE_SECONDS

    def _clean_up(self, pids: list[int], *, failed: bool) -> None:
        for what in self._shared_memory.remove():
            logger.info("removed shared memory %s", what)
        for what in leftovers.remove_x_locks(pids):
            logger.info("removed the lock of a killed X server %s", what)
        if self.scratch is not None:
            if failed and self.ray_logs is not None:
                leftovers.keep_ray_logs(self.scratch, self.ray_logs)
            leftovers.remove_scratch(self.scratch)


if __name__ == "__main__":
    sys.exit(main())
