"""One Chromium with one page, in kiosk form, on a private X display, without a network."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Any, Literal

from verl_gui.envs import processes
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.cdp import CdpClosed, CdpError, CdpPipe, CdpTimeout
from verl_gui.envs.cgroups import ControlGroup
from verl_gui.envs.leftovers import private_directory
from verl_gui.envs.sandbox import SandboxedProcess, SandboxSpec
from verl_gui.envs.xserver import XServer

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0  # a second on an idle machine, twenty on one with ten times more work than cores
_PROCESSES = 512  # processes and threads; a browser with one page has about a hundred
_CANDIDATES = ("/usr/lib/chromium/chromium", "chromium", "chromium-browser", "google-chrome")

_FLAGS = (
    "--no-sandbox",  # the sandbox around it is ours; a second one cannot be built inside
    "--kiosk",
    "--no-first-run",
    "--no-default-browser-check",
    "--password-store=basic",
    "--disable-extensions",
    "--disable-component-extensions-with-background-pages",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-notifications",
    "--disable-infobars",
    "--disable-quic",
    "--no-pings",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--disable-hang-monitor",
    "--disable-smooth-scrolling",
    "--allow-file-access-from-files",  # a document may look into the frames it holds
    "--force-prefers-reduced-motion",
    "--force-color-profile=srgb",
    "--disable-lcd-text",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    # Lightness: no GPU process, one renderer, small heaps.
    "--disable-gpu",
    "--in-process-gpu",
    "--disable-gpu-vsync",
    "--disable-frame-rate-limit",
    "--no-zygote",
    "--disable-partial-raster",
    "--disable-checker-imaging",  # no frame without its images
    "--renderer-process-limit=1",
    "--js-flags=--max-old-space-size=128",
    "--disable-dev-shm-usage",
    "--enable-features=NetworkServiceInProcess2",
    "--disable-features=Translate,MediaRouter,OptimizationHints,AudioServiceOutOfProcess,SpareRendererForSitePerProcess,"
    "IsolateOrigins,site-per-process,BackForwardCache,GlobalMediaControls,DialMediaRouteProvider,"
    "InterestFeedContentSuggestions,CalculateNativeWinOcclusion,AutofillServerCommunication",
)


def find_chromium() -> str:
    """Path of an installed Chromium.

    Raises:
        EnvFailure: ``reset``; there is none.
    """
    for candidate in _CANDIDATES:
        if path := shutil.which(candidate):
            return os.path.realpath(path)
    raise EnvFailure("reset", "Chromium is not installed; install the chromium package")


class Browser:
    """A running Chromium and the session with its only page.

    Args:
        xserver: the display it fills.
        scale: device pixels per CSS pixel.
        mode: sandbox mode.
        pages: host directory → directory inside the sandbox, of the files it may show.
        start: address of the first document.
        boot_script: JavaScript that runs in every page before the page's own.
        policies: Chromium policies, enforced inside the sandbox.
        window: width and height of the window in CSS pixels; may exceed the display.
        memory_bytes: limit on the memory of everything inside, where control groups can be made.

    Raises:
        EnvFailure: ``reset`` or ``timeout``; it does not start.
    """

    def __init__(
        self,
        xserver: XServer,
        *,
        scale: float,
        mode: Literal["bwrap", "none"],
        pages: Mapping[str, str],
        start: str,
        boot_script: str,
        policies: Mapping[str, Any],
        window: tuple[int, int],
        memory_bytes: int = 2 << 30,
    ) -> None:
        self._pipe: CdpPipe | None = None
        self._process: SandboxedProcess | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # nameless: nothing is left when it is closed
        self._profile = private_directory("chromium") if mode == "none" else None
        self._cgroup = ControlGroup.create(memory_bytes=memory_bytes, processes=_PROCESSES)
        spec = SandboxSpec(
            read_only={
                str(xserver.socket_path): str(xserver.socket_path),
                str(xserver.authority): "/run/Xauthority",
                **pages,
            },
            cgroup=self._cgroup,
            files={"/etc/chromium/policies/managed/verl_gui.json": json.dumps(dict(policies)).encode()},
            env={
                "DISPLAY": xserver.display,
                "XAUTHORITY": "/run/Xauthority" if mode == "bwrap" else str(xserver.authority),
                "TMPDIR": str(self._profile or "/tmp"),
                "NO_AT_BRIDGE": "1",
                "GTK_USE_PORTAL": "0",
                "DBUS_SESSION_BUS_ADDRESS": "disabled:",
                "DBUS_SYSTEM_BUS_ADDRESS": "disabled:",
            },
        )
        command = [
            find_chromium(),
            *_FLAGS,
            "--remote-debugging-pipe",
            f"--user-data-dir={self._profile or '/tmp/profile'}",
            f"--force-device-scale-factor={scale:g}",
            "--window-position=0,0",
            f"--window-size={window[0]},{window[1]}",
            "--app=data:text/html,",
        ]
        try:
            self._start(command, spec, mode)
            self._attach(boot_script, start)
        except CdpTimeout as error:
            self.close()
            raise EnvFailure("timeout", f"Chromium did not come up: {error}") from error
        except (CdpClosed, CdpError, OSError) as error:
            log = self._log_tail()
            self.close()
            raise EnvFailure("reset", f"Chromium did not start: {error}; its log: {log!r}") from error

    def _start(self, command: list[str], spec: SandboxSpec, mode: Literal["bwrap", "none"]) -> None:
        # Chromium wants the numbers 3 and 4, which are taken in this process: a shell moves them.
        from_us, to_browser = processes.pipe_to_child(child_writes=False)
        to_us, from_browser = processes.pipe_to_child(child_writes=True)
        self._pipe = CdpPipe(from_us, to_us)
        move = f'exec 3<&{to_browser} 4>&{from_browser} {to_browser}<&- {from_browser}>&-; exec "$@"'
        try:
            self._process = SandboxedProcess(
                ["/bin/bash", "-c", move, "chromium", *command],
                spec,
                mode=mode,
                pass_fds=[to_browser, from_browser],
                stdout=self._log,
            )
        finally:
            os.close(to_browser)
            os.close(from_browser)

    def _attach(self, boot_script: str, start: str) -> None:
        assert self._pipe is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            left = deadline - time.monotonic()
            targets = self._pipe.call("Target.getTargets", timeout_s=left)["targetInfos"]
            pages = [target["targetId"] for target in targets if target["type"] == "page"]
            if pages:
                break
            time.sleep(0.01)
        attach = {"targetId": pages[0], "flatten": True}
        self._session = self._pipe.call("Target.attachToTarget", attach, timeout_s=left)["sessionId"]
        for method, params in (
            ("Page.enable", {}),
            ("Page.addScriptToEvaluateOnNewDocument", {"source": boot_script}),
            ("Emulation.setFocusEmulationEnabled", {"enabled": True}),
            ("Page.navigate", {"url": start}),
        ):
            self.call(method, params, timeout_s=deadline - time.monotonic())

    def call(self, method: str, params: dict[str, Any] | None = None, *, timeout_s: float) -> dict[str, Any]:
        """Call a DevTools method on the page.

        Raises:
            CdpError, CdpTimeout, CdpClosed: see there.
        """
        if self._pipe is None:
            raise CdpClosed(f"{method}: the browser is closed")
        return self._pipe.call(method, params, session=self._session, timeout_s=timeout_s)

    def evaluate(self, expression: str, *, timeout_s: float) -> Any:
        """Value of a JavaScript expression in the page; promises are awaited.

        Raises:
            CdpError: the script threw.
            CdpTimeout, CdpClosed: see there.
        """
        answer = self.call(
            "Runtime.evaluate",
            {"expression": expression, "returnByValue": True, "awaitPromise": True},
            timeout_s=timeout_s,
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            what = details.get("exception", {}).get("description") or details.get("text", "script error")
            raise CdpError(what)
        return answer["result"].get("value")

    def _log_tail(self) -> str:
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 500))
        return self._log.read().decode(errors="replace")

    def alive(self) -> bool:
        """Whether the browser process runs (it may still hang)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process number of the outermost process of the browser."""
        if self._process is None:
            raise ValueError("the browser is closed")
        return self._process.pid

    def pause(self) -> None:
        """Stop all processes of the browser until :meth:`resume`."""
        if self._process is not None:
            self._process.pause()

    def resume(self) -> None:
        """Let the browser go on."""
        if self._process is not None:
            self._process.resume()

    def close(self) -> None:
        """Kill the browser and remove its files. Safe to call again."""
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._cgroup is not None:
            self._cgroup.close()
            self._cgroup = None
        self._log.close()
        if self._profile is not None:
            with contextlib.suppress(OSError):
                shutil.rmtree(self._profile)
            self._profile = None
