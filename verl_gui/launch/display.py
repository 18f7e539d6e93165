"""What a person sees while a run goes on: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, TextIO

from verl_gui.report import metrics as names

_LINE_EVERY_SECONDS = 30.0  # a plain log gets a sign of life this often during start-up


class Display(Protocol):
    """Shows where a run stands. ``tick`` is called several times a second."""

    def phase(self, name: str) -> None:
        """The run is now busy with ``name``."""

    def step(self, step: int, data: Mapping[str, float]) -> None:
        """The metrics of a step have arrived."""

    def total(self, steps: int) -> None:
        """The number of steps is known."""

    def tick(self) -> None:
        """Time has passed."""

    def message(self, text: str) -> None:
        """Show a line of text."""

    def close(self) -> None:
        """Leave the screen tidy."""


def make_display(total_steps: int | None, metrics: Sequence[str], stream: TextIO | None = None) -> Display:
    """A bar when ``stream`` (standard error by default) is a terminal, lines when it is not."""
    stream = stream or sys.stderr
    kind = BarDisplay if stream.isatty() else LineDisplay
    return kind(Progress(total_steps, metrics), stream)


class Progress:
    """The numbers behind both displays.

    Attributes:
        done: the last step whose metrics arrived.
        total: number of steps, None while unknown.
        phase: what the run is busy with.
    """

    def __init__(self, total: int | None, metrics: Sequence[str]) -> None:
        self.done = 0
        self.total = total
        self.phase = ""
        self._metrics = list(metrics)
        self._began = self._phase_began = time.monotonic()
        self._latest: dict[str, float] = {}  # last value of each figure shown
        self._arrivals: list[tuple[float, int]] = []  # time and number of recent steps

    def enter(self, phase: str) -> None:
        """Note that another phase begins."""
        self.phase, self._phase_began = phase, time.monotonic()

    def take(self, step: int, data: Mapping[str, float]) -> None:
        """Note the metrics of a step."""
        self.done = max(self.done, step)
        self._arrivals = [*self._arrivals[-9:], (time.monotonic(), step)]
        for label, patterns in (("validation", names.VALIDATION_SUCCESS), ("train", names.TRAIN_SUCCESS)):
            if not self._metrics and (number := names.value(data, patterns)) is not None:
                self._latest[label] = number
        for name in self._metrics:
            if name in data:
                self._latest[name] = data[name]
        if "timing_s/step" in data:
            self._latest["s/step"] = data["timing_s/step"]

    def figures(self) -> str:
        """The latest figures in a few words."""
        parts = [f"{name} {number:.3g}" for name, number in self._latest.items() if name != "s/step"]
        if "s/step" in self._latest:
            parts.append(f"{self._latest['s/step']:.1f} s/step")
        if (left := self.seconds_left()) is not None:
            parts.append(f"{duration(left)} left")
        return ", ".join(parts)

    def seconds_left(self) -> float | None:
        """Estimate from the recent pace, validation included; None while there is nothing to go by."""
        if self.total is None or self.done == 0:
            return None
        (first_time, first), (last_time, last) = self._arrivals[0], self._arrivals[-1]
        pace = (last_time - first_time) / (last - first) if last > first else self._latest.get("s/step")
        return None if pace is None else pace * max(self.total - self.done, 0)

    def in_phase(self) -> str:
        """The phase and how long it has lasted."""
        return f"{self.phase} ({duration(time.monotonic() - self._phase_began)})"

    def elapsed(self) -> str:
        """Time since the start."""
        return duration(time.monotonic() - self._began)


class BarDisplay:
    """One line that stays in place, with a bar once steps come in."""

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        from tqdm import tqdm

        self._progress = progress
        self._stream = stream
        self._bar = tqdm(
            total=progress.total,
            file=stream,
            leave=True,
            mininterval=0,
            ncols=_columns(stream),
            nrows=2,  # a terminal that does not know its height would hide the bar
            bar_format="{desc} {bar:20} {n_fmt}/{total_fmt}{postfix}",
        )
        self._drawn = 0.0

    def phase(self, name: str) -> None:
        self._progress.enter(name)
        self._draw()

    def step(self, step: int, data: Mapping[str, float]) -> None:
        self._progress.take(step, data)
        self._draw()

    def total(self, steps: int) -> None:
        self._progress.total = self._bar.total = steps
        self._draw()

    def tick(self) -> None:
        if time.monotonic() - self._drawn >= 0.5:
            self._draw()

    def message(self, text: str) -> None:
        self._bar.write(text, file=self._stream)

    def close(self) -> None:
        self._draw()
        self._bar.close()

    def _draw(self) -> None:
        progress = self._progress
        self._drawn = time.monotonic()
        self._bar.n = progress.done
        self._bar.ncols = _columns(self._stream)
        if progress.done:
            self._bar.set_description_str(f"step [{progress.elapsed()}]", refresh=False)
        else:
            self._bar.set_description_str(progress.in_phase(), refresh=False)
        self._bar.set_postfix_str(progress.figures(), refresh=False)
        self._bar.refresh()


class LineDisplay:
    """One line for each event, for logs and CI."""

    def __init__(self, progress: Progress, stream: TextIO) -> None:
        self._progress = progress
        self._stream = stream
        self._written = time.monotonic()

    def phase(self, name: str) -> None:
        self._progress.enter(name)
        self.message(f"[{self._progress.elapsed()}] {name} …")

    def step(self, step: int, data: Mapping[str, float]) -> None:
        self._progress.take(step, data)
        of = "" if self._progress.total is None else f"/{self._progress.total}"
        self.message(f"[{self._progress.elapsed()}] step {step}{of}: {self._progress.figures() or 'done'}")

    def total(self, steps: int) -> None:
        self._progress.total = steps

    def tick(self) -> None:
        if self._progress.done == 0 and time.monotonic() - self._written >= _LINE_EVERY_SECONDS:
            self.message(f"[{self._progress.elapsed()}] still {self._progress.in_phase()}")

    def message(self, text: str) -> None:
        self._written = time.monotonic()
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        self._stream.flush()


def _columns(stream: TextIO) -> int:
    """Width of the terminal; 80 where it does not know its own (pipes of some CI systems say 0)."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def duration(seconds: float) -> str:
    """``42s``, ``3m05s``, ``2h07m``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02}m"
