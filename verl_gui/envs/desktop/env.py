"""A desktop with real programs on a private X server."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources

from verl_gui.actions import Action, ActionType
from verl_gui.actions.errors import DisplayGoneError, ExecutorError
from verl_gui.actions.x11 import X11Executor
from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.envs.desktop.checkers import check_evaluator, score
from verl_gui.envs.desktop.guest import Guest, GuestFileError
from verl_gui.envs.desktop.setup_steps import check_steps, prepare
from verl_gui.envs.desktop.windows import WindowManager
from verl_gui.envs.sandbox import SandboxMode, choose_mode
from verl_gui.envs.xserver import XServer
from verl_gui.tasks.task import Task

logger = logging.getLogger(__name__)

_MIB = 1 << 20

# A blinking caret would make equal states look different, and a settled screen look busy.
_GTK_SETTINGS = b"""[Settings]
gtk-cursor-blink=0
gtk-enable-animations=0
gtk-recent-files-enabled=0
"""
_GTK2_SETTINGS = b"gtk-cursor-blink = 0\ngtk-recent-files-max-age = 0\n"


class DesktopEnv:
    """openbox and real programs in a sandbox, on Xvfb. Implements ``GuiEnv``.

    Every reset starts a new X server, a new sandbox and a new home directory, so nothing of an earlier
    episode is left. Tasks have OSWorld's form, with the steps of :mod:`.setup_steps` and the checkers of
    :mod:`.checkers`. Inside there is no network and none of the host's files but its programs.

    Args:
        screen: width and height in pixels.
        sandbox: see :func:`verl_gui.envs.sandbox.choose_mode`.
        show_cursor: draw the pointer into the screenshots.
        memory_mb: limit on the memory of everything inside, in MiB.
        processes: limit on the processes and threads inside; a Chromium has about 200.
        file_mb: limit on the size of one file, in MiB.
        home_mb: size of the home directory, in MiB; it lies in memory.
        quiet_s: the screen counts as settled when it has not changed for so long.
        settle_s: longest wait for it to settle after the actions of a step.

    Raises:
        EnvFailure: ``reset``; the sandbox was asked for and does not work.
    """

    def __init__(
        self,
        screen: tuple[int, int] = (1280, 720),
        *,
        sandbox: SandboxMode = "auto",
        show_cursor: bool = True,
        memory_mb: int = 1024,
        processes: int = 400,
        file_mb: int = 256,
        home_mb: int = 256,
        quiet_s: float = 0.03,
        settle_s: float = 0.5,
    ) -> None:
        self.screen = (int(screen[0]), int(screen[1]))
        self._mode = choose_mode(sandbox)
        self._show_cursor = show_cursor
        self._limits = {
            "memory_bytes": memory_mb * _MIB,
            "process_count": processes,
            "file_bytes": file_mb * _MIB,
            "home_bytes": home_mb * _MIB,
        }
        self._quiet_s, self._settle_s = quiet_s, settle_s
        self._task: Task | None = None
        self._last: ActionType | None = None
        self._terminated = True
        self._closed = self._paused = False
        self._xserver: XServer | None = None
        self._windows: WindowManager | None = None
        self._guest: Guest | None = None
        self._executor: X11Executor | None = None
        atexit.register(self.close)  # an interrupted program leaves nothing behind

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """Start a fresh desktop and prepare ``task``, which has one instance: ``seed`` changes nothing.

        Raises:
            TaskFormatError: the desktop cannot prepare or score the task.
            EnvFailure: ``reset``, ``timeout`` or ``dead``.
        """
        if self._closed:
            raise EnvFailure("dead", "the environment is closed")
        check_steps(task)
        check_evaluator(task)
        self._stop()
        try:
            self._start()
            assert self._guest is not None and self._windows is not None and self._xserver is not None
            prepare(task, self._guest, self._windows)
            self._xserver.neutral_input()
            observation, _ = self._look_when_settled(3.0, quiet_s=0.1)
        except GuestFileError as error:
            self._stop()
            raise EnvFailure("reset", str(error)) from error
        except BaseException:
            self._stop()
            raise
        self._task, self._last, self._terminated = task, None, False
        return replace(observation, info={"instruction": task.instruction})

    def step(self, actions: Sequence[Action]) -> StepResult:
        """Carry out ``actions``, wait until the screen has settled, and look.

        Raises:
            RuntimeError: the episode is over, or none was started.
            EnvFailure: ``step`` or ``dead``.
        """
        if self._terminated:
            raise RuntimeError("no episode is running; call reset() first")
        assert self._executor is not None
        terminal = next((action.type for action in actions if action.type.is_terminal), None)
        if actions:
            self._last = terminal or actions[-1].type
        self._check_alive()
        self._resume()
        try:
            self._executor.perform([action for action in actions if not action.type.is_terminal])
        except DisplayGoneError as gone:
            raise EnvFailure("dead", str(gone)) from gone
        except ExecutorError as error:
            raise EnvFailure("step", str(error)) from error
        observation, settled = self._look_when_settled(self._settle_s, quiet_s=self._quiet_s)
        self._terminated = terminal is not None
        info = {"settled": settled, "ended_by": terminal.value if terminal else None}
        return StepResult(observation, self._terminated, info)

    def evaluate(self) -> float:
        """Score of the desktop as it is: 1.0 or 0.0.

        Raises:
            RuntimeError: no task was started.
            EnvFailure: ``evaluate``, ``timeout`` or ``dead``.
        """
        if self._task is None or self._guest is None or self._windows is None:
            raise RuntimeError("no episode to score; call reset() first")
        self._check_alive()
        self._resume()
        gave_up = self._last in (ActionType.FAIL, ActionType.CALL_USER)
        return score(self._task, self._guest, self._windows, gave_up=gave_up)

    def pause(self) -> None:
        """Stop all programs until the next call, so that they use no processor time while nobody acts."""
        if self._guest is not None and not self._paused:
            self._guest.pause()
            self._paused = True

    def close(self) -> None:
        """Stop all processes and remove all files. Safe to call again."""
        self._closed = True
        atexit.unregister(self.close)
        self._stop()

    # -- inside ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._xserver = XServer(self.screen, show_cursor=self._show_cursor)
        self._guest = Guest(self._xserver, mode=self._mode, **self._limits)
        self._guest.write_file(".config/gtk-3.0/settings.ini", _GTK_SETTINGS)
        self._guest.write_file(".gtkrc-2.0", _GTK2_SETTINGS)
        rules = resources.files("verl_gui.envs.desktop").joinpath("rc.xml").read_bytes()
        self._guest.write_file(".config/openbox/rc.xml", rules)
        self._windows = WindowManager(self._xserver.display, self._xserver.authority)
        self._guest.start(["openbox"])
        self._windows.wait_until_managed()
        self._executor = X11Executor(self._xserver.display, str(self._xserver.authority))

    def _resume(self) -> None:
        if self._paused and self._guest is not None:
            self._guest.resume()
        self._paused = False

    def _check_alive(self) -> None:
        if self._xserver is None or not self._xserver.alive():
            raise EnvFailure("dead", "Xvfb is gone; reset() starts it again")
        if self._guest is None or not self._guest.alive():
            raise EnvFailure("dead", "the sandbox of the desktop is gone; reset() starts it again")

    def _look_when_settled(self, longest_s: float, *, quiet_s: float) -> tuple[Observation, bool]:
        """The screen once it has not changed for ``quiet_s``, and whether that came within ``longest_s``.

        Encoding a large screen takes as long as a step should wait for it to be quiet, so it is encoded while
        it is watched: if it is still the same afterwards, the picture is ready.
        """
        assert self._xserver is not None
        framebuffer = self._xserver.framebuffer
        start = changed = time.monotonic()
        before, taken_at, png = framebuffer.snapshot(), time.time(), None
        while True:
            time.sleep(quiet_s / 3 if png is None else max(0.0, changed + quiet_s - time.monotonic()))
            now, after = time.monotonic(), framebuffer.snapshot()
            if after != before:
                before, changed, taken_at, png = after, now, time.time(), None
            elif png is None:
                png = framebuffer.png(before)
                continue
            late = now - start > longest_s
            if png is not None and (late or now - changed >= quiet_s):
                break
            if late:  # it never stands still: as it is now
                png = framebuffer.png(before)
                break
        self._check_alive()
        return Observation(png, timestamp=taken_at), now - changed >= quiet_s

    def _stop(self) -> None:
        self._terminated, self._task, self._paused = True, None, False
        for name in ("_executor", "_windows", "_guest", "_xserver"):
            part = getattr(self, name)
            setattr(self, name, None)
            if part is not None:
                part.close()
