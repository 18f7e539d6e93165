"""What an environment costs: latency, throughput and memory, beside named peers in the same run.

* ``desktop`` at 1920x1080: an action until its new screenshot is there; a reset, and one that was prepared
  ahead of time on a spare. Peer: the way of guest servers such as OSWorld's, on the same desktop with the
  same program: HTTP, ``python -c "import pyautogui; …"`` for an action, ``scrot`` for the screenshot
  (pyautogui's own where scrot is missing). OSWorld's pause of 2 s after each action is left out.
* ``desktop``, several at once: steps a second, and memory of one more desktop (proportional share, PSS).
* ``miniwob``: a reset and a click until reward and screenshot. Peer: the Gymnasium environment of the
  ``miniwob`` package, which drives Chromium through selenium; it needs chromedriver (Debian:
  chromium-driver).

Medians, and the least of all, which is what an idle machine would show.

    python benchmarks/env_latency.py
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import os
import random
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from verl_gui.actions import Action, ActionType, to_pyautogui
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.desktop import DesktopEnv
from verl_gui.envs.miniwob import MiniwobEnv, oracle
from verl_gui.envs.worker import GuiEnvWorker
from verl_gui.envs.xserver import _authority_entry
from verl_gui.tasks.task import Task

_FAMILY_LOCAL = 256
FULL_HD = (1920, 1080)
EDITOR = Task(
    id="editor",
    instruction="Write.",
    config=(
        {"type": "write_file", "parameters": {"path": "~/note.txt", "text": ""}},
        {"type": "open", "parameters": {"path": "~/note.txt"}},
    ),
    evaluator={"func": "infeasible"},
)


def show(what: str, seconds: list[float]) -> None:
    """One line: median and least, in milliseconds."""
    print(f"{what:58} {statistics.median(seconds) * 1e3:9.1f} {min(seconds) * 1e3:9.1f}", flush=True)


def timed(function: Callable[[], Any], times: int) -> list[float]:
    """Seconds of each of several calls."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - began)
    return seconds


def letters() -> list[Action]:
    """An action that changes the screen."""
    return [Action(ActionType.TYPE, text=random.choice("abcdefghij"))]


# -- desktop -----------------------------------------------------------------------------------------------


def desktop(times: int) -> None:
    """Our desktop, then the peer on the very same one."""
    env = DesktopEnv(FULL_HD)
    try:
        show("desktop 1080p: reset with an editor", timed(lambda: env.reset(EDITOR), max(3, times // 8)))
        show("desktop 1080p: typed letter -> new screenshot", timed(lambda: env.step(letters()), times))
        assert env._xserver is not None
        with GuestServer(env._xserver.display, env._xserver.authority) as guest:
            name = "scrot" if guest.scrot else "pyautogui.screenshot (no scrot here)"
            seconds = timed(lambda: guest.step(letters()), max(3, times // 8))
            show(f"  peer: HTTP + pyautogui + {name}", seconds)
    finally:
        env.close()
    show("desktop 1080p: reset that a spare had prepared", asyncio.run(prepared(max(3, times // 8))))


async def prepared(times: int) -> list[float]:
    """Seconds of resets that were done ahead of time."""
    worker, seconds = GuiEnvWorker("desktop", {"screen": FULL_HD}), []
    await worker.start(60.0)
    for _ in range(times):
        await worker.prepare(EDITOR, None, 60.0)
        began = time.perf_counter()
        await worker.reset(EDITOR, None, 60.0)
        seconds.append(time.perf_counter() - began)
    await worker.close(60.0)
    return seconds


class GuestServer:
    """A small guest server of the usual kind on an X display, and its client."""

    def __init__(self, display: str, authority: Path) -> None:
        self.scrot = shutil.which("scrot")
        # pyautogui's Xlib looks for the entry of this very host and display.
        host, number = os.uname().nodename.encode(), display[1:].encode()
        cookie = authority.read_bytes()[-16:]
        own = authority.with_name("peer-authority")
        own.write_bytes(_authority_entry(_FAMILY_LOCAL, host, number, cookie))
        env = {**os.environ, "DISPLAY": display, "XAUTHORITY": str(own)}
        scrot = self.scrot

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                code = self.rfile.read(int(self.headers["Content-Length"])).decode()
                source = f"import pyautogui, time; pyautogui.FAILSAFE = False; {code}"
                subprocess.run([sys.executable, "-c", source], env=env, check=True)
                self.reply(b"done")

            def do_GET(self) -> None:
                path = f"/tmp/verl-gui-peer-{os.getpid()}.png"
                take = ["scrot", "-p", "-o", path]
                if not scrot:
                    code = f"import pyautogui; pyautogui.screenshot({path!r})"
                    take = [sys.executable, "-c", code]
                subprocess.run(take, env=env, check=True)
                self.reply(Path(path).read_bytes())
                os.unlink(path)

            def reply(self, body: bytes) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._url = f"http://127.0.0.1:{self._server.server_port}/"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def step(self, actions: list[Action]) -> bytes:
        """An action, then a screenshot."""
        text = actions[0].text
        source = f"pyautogui.write({text!r})" if text else to_pyautogui(actions)
        urllib.request.urlopen(self._url, source.encode(), timeout=30).read()
        return urllib.request.urlopen(self._url, timeout=30).read()

    def __enter__(self) -> GuestServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


# -- many desktops -----------------------------------------------------------------------------------------


def steps_within(screen: tuple[int, int], seconds: float) -> tuple[int, float]:
    """Steps that one desktop takes in so many seconds, and the processor time they cost, all processes."""
    env, steps = DesktopEnv(screen), 0
    try:
        env.reset(EDITOR)
        before = processor_s()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            env.step(letters())
            steps += 1
        return steps, processor_s() - before
    finally:
        env.close()


def processor_s() -> float:
    """Processor time of this process and its descendants so far."""
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(used.user + used.system for used in times)


def throughput(screen: tuple[int, int], desktops: int, seconds: float) -> None:
    """Steps a second of several desktops, each in a process of its own."""
    with ProcessPoolExecutor(desktops) as processes:
        running = [processes.submit(steps_within, screen, seconds) for _ in range(desktops)]
        results = [future.result() for future in running]
    steps, used_s = (sum(values) for values in zip(*results, strict=True))
    name = f"desktop {screen[0]}x{screen[1]}: {desktops} at once"
    print(f"{name + ', steps a second':58} {steps / seconds:9.1f}", flush=True)
    # On a machine that others use too, this says more: two free cores give 2 / this.
    print(f"{name + ', processor time of a step, ms':58} {used_s / steps * 1e3:9.1f}", flush=True)


def memory() -> None:
    """Memory of one more desktop with an editor."""
    envs = [DesktopEnv(FULL_HD) for _ in range(3)]
    try:
        shares = []
        for env in envs:
            env.reset(EDITOR)
            shares.append(sum(_pss(process) for process in psutil.Process().children(recursive=True)))
        extra = (shares[-1] - shares[0]) / (len(shares) - 1) / (1 << 20)
        print(f"{'desktop 1080p: memory of one more with an editor, MiB':58} {extra:9.1f}", flush=True)
    finally:
        for env in envs:
            env.close()


def _pss(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.NoSuchProcess:
        return 0


# -- miniwob -----------------------------------------------------------------------------------------------


def miniwob(times: int) -> None:
    """Our pages, then those of the package's own environment."""
    task = Task(id="miniwob:click-test")
    env = MiniwobEnv((168, 224))
    try:
        seeds = iter(range(10_000))
        show("miniwob: reset", timed(lambda: env.reset(task, seed=next(seeds)), times))
        clicks = []
        for _ in range(times):
            env.reset(task, seed=next(seeds))
            actions = oracle(env)
            began = time.perf_counter()
            env.step(actions)
            score = env.evaluate()
            clicks.append(time.perf_counter() - began)
            if score != 1.0:
                raise EnvFailure("evaluate", f"the expert scored {score}")
        show("miniwob: click -> reward and screenshot", clicks)
    finally:
        env.close()
    if shutil.which("chromedriver") is None:
        print("  peer: chromedriver is not installed (Debian: chromium-driver), left out", flush=True)
        return
    import gymnasium
    import miniwob as package
    from miniwob.action import ActionTypes

    gymnasium.register_envs(package)
    peer = gymnasium.make("miniwob/click-test-v1")
    try:
        resets, clicks = [], []
        for seed in range(max(5, times // 4)):
            began = time.perf_counter()
            observation, _ = peer.reset(seed=seed)
            resets.append(time.perf_counter() - began)
            button = next(element for element in observation["dom_elements"] if element["tag"] == "button")
            action = peer.unwrapped.create_action(ActionTypes.CLICK_ELEMENT, ref=button["ref"])
            began = time.perf_counter()
            _, reward, _, _, _ = peer.step(action)
            clicks.append(time.perf_counter() - began)
            if reward <= 0:
                raise EnvFailure("evaluate", f"the peer's click was worth {reward}")
        show("  peer: miniwob's Gymnasium environment, reset", resets)
        show("  peer: miniwob's Gymnasium environment, click", clicks)
    finally:
        peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=40, help="repetitions")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of the throughput runs")
    parser.add_argument("--desktops", type=int, default=4, help="desktops at once")
    arguments = parser.parse_args()
    busy = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {busy:.1f} before the start{'':13} median ms  least ms")
    desktop(arguments.times)
    for screen in (FULL_HD, (1280, 720)):
        throughput(screen, arguments.desktops, arguments.seconds)
    memory()
    miniwob(arguments.times)


if __name__ == "__main__":
    main()
