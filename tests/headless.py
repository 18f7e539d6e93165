"""A page of a headless Chromium that tests look at and click on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from verl_gui.envs.cdp import CdpPipe

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--enable-logging=stderr",
    "--window-size=1366,768",
    "--remote-debugging-pipe",
]
LOADED = "new Promise(done => document.readyState === 'complete' ? done() : addEventListener('load', done))"


class Browser:
    """A page of a headless Chromium, spoken to over pipes."""

    def __init__(self, directory: Path) -> None:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        assert chromium, "Chromium is needed; Debian's package is called chromium"
        self.log = directory / "browser.log"
        # A stopped Chromium leaves its sockets behind, and paths in `directory` are too long for them.
        self.temporary = tempfile.TemporaryDirectory(prefix="headless-")
        to_browser, ours_out = os.pipe()
        ours_in, from_browser = os.pipe()
        redirect = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [
                    "bash",
                    "-c",
                    redirect,
                    "-",
                    chromium,
                    *FLAGS,
                    f"--user-data-dir={directory / 'profile'}",
                    "about:blank",
                ],
                env={**os.environ, "TMPDIR": self.temporary.name},
                pass_fds=[to_browser, from_browser],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(to_browser)
        os.close(from_browser)
        self.pipe = CdpPipe(ours_out, ours_in)
        target = self.pipe.call("Target.createTarget", {"url": "about:blank"}, timeout_s=60)["targetId"]
        attached = {"targetId": target, "flatten": True}
        self.session = self.pipe.call("Target.attachToTarget", attached, timeout_s=30)["sessionId"]

    def call(self, method: str, **parameters: object) -> dict:
        return self.pipe.call(method, parameters, session=self.session, timeout_s=60)

    def open(self, page: Path | str, anchor: str = "") -> None:
        address = page if isinstance(page, str) else page.as_uri()
        for url in ("about:blank", f"{address}{anchor}"):  # another anchor alone would load nothing
            self.call("Page.navigate", url=url)
        self.call("Runtime.evaluate", expression=LOADED, awaitPromise=True)

    def value(self, expression: str) -> object:
        result = self.call("Runtime.evaluate", expression=f"JSON.stringify({expression})", returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return json.loads(result["result"].get("value", "null"))

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key)

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def complaints(self) -> list[str]:
        return [line for line in self.log.read_text(errors="replace").splitlines() if "CONSOLE" in line]

    def close(self) -> None:
        self.pipe.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.temporary.cleanup()
