"""What a person sees while runs go on: a bar with the time left, or a line now and then."""

from __future__ import annotations

import sys
from typing import TextIO

from tqdm import tqdm

from verl_gui.evaluation.runs import Run

TERMINAL_EVERY_S = 0.5
LOG_EVERY_S = 15.0


class Progress:
    """Counts runs on ``stream`` (standard error by default).

    Args:
        label: stands before the bar.
        stream: a terminal gets a bar, anything else a line now and then.
    """

    def __init__(self, label: str, stream: TextIO | None = None) -> None:
        self._label, self._stream = label, stream or sys.stderr
        self._bar: tqdm | None = None
        self.valid = self.successes = self.invalid = 0

    def begin(self, total: int, done: int) -> None:
        """``total`` runs are wanted, ``done`` of them exist already; they do not count for the time left."""
        terminal = self._stream.isatty()
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=self._label,
            unit="run",
            file=self._stream,
            mininterval=TERMINAL_EVERY_S if terminal else LOG_EVERY_S,
            dynamic_ncols=terminal,
        )

    def ran(self, run: Run, *, last: bool) -> None:
        """A run ended; ``last`` when no further attempt at it follows."""
        self.valid += run.valid
        self.successes += run.success
        self.invalid += not run.valid
        if self._bar is None:
            return
        rate = f"{self.successes / self.valid:.0%}" if self.valid else "-"
        self._bar.set_postfix({"success": rate, "invalid": self.invalid}, refresh=False)
        if last:
            self._bar.update(1)

    def end(self) -> None:
        """Leave the screen tidy."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
