"""MiniWoB++ tasks in a real Chromium on a private X display."""

from __future__ import annotations

import atexit
import json
import logging
import math
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_gui.actions import Action
from verl_gui.actions.errors import DisplayGoneError, ExecutorError
from verl_gui.actions.x11 import X11Executor
from verl_gui.envs.base import EnvFailure, FailureKind, Observation, StepResult
from verl_gui.envs.browser import Browser
from verl_gui.envs.cdp import CdpClosed, CdpError, CdpTimeout
from verl_gui.envs.leftovers import private_directory
from verl_gui.envs.miniwob.page import (
    PAGES_INSIDE,
    POLICIES,
    SENTINEL_KEY,
    STAGE_FILE,
    STAGE_HTML,
    STAGE_INSIDE,
    STAMP_ROWS,
    VIEWPORT,
    boot_script,
    pages_directory,
    task_names,
)
from verl_gui.envs.png import encode_png
from verl_gui.envs.sandbox import SandboxMode, choose_mode
from verl_gui.envs.xserver import XServer
from verl_gui.tasks.task import Task

logger = logging.getLogger(__name__)

PREFIX = "miniwob:"
"""Task ids are this and the name of a page: ``miniwob:click-test-2``."""

_INPUT_PATIENCE_MS = 150
_PAINT_TIMEOUT_S = 2.0


class MiniwobEnv:
    """One Chromium that shows MiniWoB++ pages, driven through X input events. Implements ``GuiEnv``.

    The page fills the screen from its top left corner; a task's area is 160×210 CSS pixels there, the rest
    shows the page's plain background. Equal task and seed give an equal start, to the pixel.

    Args:
        screen: width and height of the screen in pixels.
        scale: screen pixels per CSS pixel.
        sandbox: see :func:`verl_gui.envs.sandbox.choose_mode`.
        show_cursor: draw the pointer into the screenshots.
        kept_pages: how many tasks' pages stay loaded, at some 5 MiB each.
        call_timeout_s: how long the page may take for one answer before it counts as hung.

    Raises:
        ValueError: the screen cannot hold the task area at this scale.
        EnvFailure: ``reset``; the programs do not start.
        ModuleNotFoundError: the ``miniwob`` package is not installed.

    Example:
        >>> env = MiniwobEnv(screen=(168, 224))  # doctest: +SKIP
        >>> observation = env.reset(Task(id="miniwob:click-test-2"), seed=7)  # doctest: +SKIP
        >>> observation.info["instruction"]  # doctest: +SKIP
        'Click button ONE.'
    """

    def __init__(
        self,
        screen: tuple[int, int] = (168, 224),
        scale: float = 1.0,
        *,
        sandbox: SandboxMode = "auto",
        show_cursor: bool = True,
        kept_pages: int = 8,
        call_timeout_s: float = 10.0,
    ) -> None:
        if scale <= 0 or screen[0] < 160 * scale or screen[1] < 210 * scale:
            raise ValueError(f"a screen of {screen} pixels cannot show 160x210 CSS pixels at scale {scale:g}")
        self.screen = (int(screen[0]), int(screen[1]))
        self.scale = float(scale)
        self._mode = choose_mode(sandbox)
        self._show_cursor = show_cursor
        self._kept_pages = max(1, kept_pages)
        self._call_timeout_s = call_timeout_s
        self._pages = pages_directory()
        self._xserver: XServer | None = None
        self._browser: Browser | None = None
        self._executor: X11Executor | None = None
        self._page: str | None = None
        self._sentinels = 0
        self._stamp = 0
        self._strip = round(STAMP_ROWS * self.scale)
        self._terminated = True
        self._closed = self._paused = False
        self._stage_directory = private_directory("stage")
        (self._stage_directory / STAGE_FILE).write_text(STAGE_HTML)
        atexit.register(self.close)  # an interrupted program leaves nothing behind
        try:
            self._ensure_running()
        except BaseException:
            self.close()
            raise

    # -- GuiEnv ---------------------------------------------------------------------------------------

    def reset(self, task: Task, *, seed: int | None = None) -> Observation:
        """Show ``task`` in the instance that ``seed`` gives (default 0); restarts whatever is broken.

        Raises:
            ValueError: the task is not one of the pages.
            EnvFailure: ``reset``, ``timeout`` or ``dead``.
        """
        name = task.id.removeprefix(PREFIX)
        if not task.id.startswith(PREFIX) or name not in task_names():
            raise ValueError(f"unknown task {task.id!r}; expected {PREFIX}NAME with one of MiniWoB++'s pages")
        if self._closed:
            raise EnvFailure("dead", "the environment is closed")
        try:
            return self._reset(name, seed or 0)
        except EnvFailure as failure:
            logger.warning("reset of %s failed (%s); starting afresh", task.id, failure)
            self._stop()
            return self._reset(name, seed or 0)

    def step(self, actions: Sequence[Action]) -> StepResult:
        """Carry out ``actions``, wait until the page has handled them, and look.

        Raises:
            RuntimeError: the episode is over, or none was started.
            EnvFailure: ``step``, ``timeout``, ``dead`` or ``screenshot``.
        """
        if self._terminated:
            raise RuntimeError("no episode is running; call reset() first")
        self._resume()
        terminal = next((action for action in actions if action.type.is_terminal), None)
        state = self._act([action for action in actions if not action.type.is_terminal])
        # A page that the agent has left gives no reward any more.
        self._terminated = terminal is not None or state["done"] is not False
        info = {"page_done": bool(state["done"]), "ended_by": terminal.type.value if terminal else None}
        return StepResult(self._observe(), self._terminated, info)

    def evaluate(self) -> float:
        """The page's reward: 1 for a success, parts of it where the page gives parts, else 0.

        Raises:
            EnvFailure: ``evaluate``, ``timeout`` or ``dead``.
        """
        state = self._stage("state()", kind="evaluate")
        return min(1.0, max(0.0, float(state["reward"] or 0.0))) if state["done"] else 0.0

    def pause(self) -> None:
        """Stop the browser until the next call, so that it uses no processor time while nobody acts."""
        if self._browser is not None and not self._paused:
            self._browser.pause()
            self._paused = True

    def close(self) -> None:
        """Stop all processes and remove all files. Safe to call again."""
        self._closed = True
        atexit.unregister(self.close)
        self._terminated = True
        self._stop()
        shutil.rmtree(self._stage_directory, ignore_errors=True)

    # -- for experts ----------------------------------------------------------------------------------

    def script(self, expression: str, *, kind: FailureKind = "step") -> Any:
        """Value of a JavaScript expression in the task's page.

        Raises:
            EnvFailure: ``kind`` if the script throws, else ``timeout`` or ``dead``.
        """
        return self._stage(f"evaluate({json.dumps(expression)})", kind=kind)

    def _stage(self, call: str, *, kind: FailureKind) -> Any:
        """Call a function of the stage (see :mod:`.page`)."""
        if self._browser is None:
            raise EnvFailure("dead", "Chromium is not running; reset() starts it again")
        self._resume()
        try:
            return self._browser.evaluate(f"verlGui.{call}", timeout_s=self._call_timeout_s)
        except CdpTimeout as error:
            raise EnvFailure("timeout", f"the page does not answer: {error}") from error
        except CdpClosed as error:
            raise EnvFailure("dead", f"Chromium is gone: {error}") from error
        except CdpError as error:
            raise EnvFailure(kind, f"the page's script failed: {error}") from error

    @property
    def task_name(self) -> str:
        """Name of the page shown last, such as ``click-test-2``."""
        if self._page is None:
            raise RuntimeError("no task is shown; call reset() first")
        return self._page

    # -- inside ---------------------------------------------------------------------------------------

    def _reset(self, name: str, seed: int) -> Observation:
        self._ensure_running()
        self._resume()
        assert self._xserver is not None
        self._terminated = True
        self._xserver.neutral_input()
        self._show(name)
        self._tap_sentinel()
        arguments = f"'seed {seed}', {self._sentinels}, '{self._next_stamp()}'"
        started = self._stage(f"start({arguments})", kind="reset")
        if not started["ready"]:
            raise EnvFailure("reset", f"the page {name} did not become ready")
        if not self._wait_for_stamp():
            raise EnvFailure("reset", f"the page {name} is not painted")
        self._terminated = False
        return self._observe({"instruction": started["instruction"], "seed": seed})

    def _resume(self) -> None:
        if self._paused and self._browser is not None:
            self._browser.resume()
        self._paused = False

    def _show(self, name: str) -> None:
        """Bring the page ``name`` up."""
        self._page = None
        url = json.dumps(f"{self._address(self._pages, PAGES_INSIDE)}/miniwob/{name}.html")
        self._stage(f"show({url}, {self._kept_pages}, {900 * self._call_timeout_s:.0f})", kind="reset")
        self._page = name

    def _address(self, host: Path, inside: str) -> str:
        """URL of a directory as the browser sees it."""
        return f"file://{inside}" if self._mode == "bwrap" else host.as_uri()

    def _act(self, actions: Sequence[Action]) -> dict[str, Any]:
        """Perform actions and return the page's state once it has handled them and painted."""
        if actions:
            assert self._xserver is not None and self._executor is not None
            try:
                self._executor.perform(actions)
            except DisplayGoneError as gone:
                raise EnvFailure("dead", str(gone)) from gone
            except ExecutorError as error:
                raise EnvFailure("step", str(error)) from error
            self._tap_sentinel()
        arguments = f"{self._sentinels}, {_INPUT_PATIENCE_MS}, '{self._next_stamp()}'"
        state = self._stage(f"settle({arguments})", kind="step")
        state["painted"] = self._wait_for_stamp()
        return state

    def _tap_sentinel(self) -> None:
        """Mark the end of the input so far; the page counts these marks."""
        assert self._xserver is not None
        self._xserver.tap(SENTINEL_KEY)
        self._sentinels += 1

    def _next_stamp(self) -> str:
        """A new colour for the page to show under the visible screen."""
        self._stamp = self._stamp % 0xFFFFFF + 1
        return f"#{self._stamp:06x}"

    def _wait_for_stamp(self) -> bool:
        """Wait until the colour given last is in the framebuffer; False when something hides it for long."""
        assert self._xserver is not None
        x, y = self.screen[0] - 2, self.screen[1] + self._strip // 2
        deadline = time.monotonic() + _PAINT_TIMEOUT_S
        while self._xserver.framebuffer.pixel(x, y) != self._stamp:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.0005)
        return True

    def _observe(self, info: dict[str, Any] | None = None) -> Observation:
        if self._xserver is None or self._browser is None or not self._browser.alive():
            raise EnvFailure("dead", "Chromium or Xvfb has ended")
        return Observation(encode_png(self._xserver.framebuffer.grab(self.screen[1])), info or {})

    def _ensure_running(self) -> None:
        """Start the X server and the browser where they are missing or dead."""
        if self._xserver is not None and not self._xserver.alive():
            self._stop()
        if self._browser is not None and not self._browser.alive():
            self._browser.close()
            self._browser = None
        if self._xserver is None:
            display_size = (self.screen[0], self.screen[1] + self._strip)
            self._xserver = XServer(display_size, show_cursor=self._show_cursor)
            self._executor = X11Executor(
                self._xserver.display, str(self._xserver.authority), timeout_s=self._call_timeout_s
            )
        if self._browser is None:
            self._page, self._sentinels = None, 0
            width, height = (math.ceil(pixels / self.scale) for pixels in self.screen)
            self._browser = Browser(
                self._xserver,
                scale=self.scale,
                mode=self._mode,
                pages={str(self._pages): PAGES_INSIDE, str(self._stage_directory): STAGE_INSIDE},
                start=f"{self._address(self._stage_directory, STAGE_INSIDE)}/{STAGE_FILE}",
                boot_script=boot_script(stamp_top=self.screen[1] / self.scale),
                policies=POLICIES,
                # The window may reach beyond the screen. One of exactly its size is made a pixel smaller.
                window=(max(VIEWPORT[0], width + STAMP_ROWS), max(VIEWPORT[1], height + STAMP_ROWS)),
            )

    def _stop(self) -> None:
        self._page = None
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        if self._browser is not None:
            self._browser.close()
            self._browser = None
        if self._xserver is not None:
            self._xserver.close()
            self._xserver = None
