"""What a run is busy with before its first step, deduced from its log.

verl 0.9.1 starts for one to two minutes without a word meant for people. The marks below are lines that
verl, Ray and vLLM print anyway; a mark that disappears in a later version costs a label, nothing else.
"""

from __future__ import annotations

import re

from verl_gui.launch.follow import without_colours

START = "starting Python"

# In the order in which a run goes through them.
_MARKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("starting Ray", re.compile(r"^ray init kwargs:")),
    ("starting the trainer", re.compile(r"Started a local Ray instance|^\(TaskRunner\w* pid=")),
    ("loading tasks", re.compile(r"Using dataset class:|dataset len:")),
    ("loading the model", re.compile(r"create worker group|^\(WorkerDict pid=")),
    ("starting vLLM", re.compile(r"actor and ref model engine initialized|^\(vLLMHttpServer pid=")),
    ("first rollouts", re.compile(r"LLMServerManager: |all initialize finished")),
    ("training", re.compile(r"Initial validation metrics:|Training Progress:")),
)


class PhaseTracker:
    """Follows the phase through the log; it only ever moves forward.

    Attributes:
        phase: the current one.
        total_steps: number of training steps when the log has told it, else None.
    """

    def __init__(self) -> None:
        self.phase = START
        self.total_steps: int | None = None
        self._next = 0

    def feed(self, line: str) -> bool:
        """Take one log line in; True when the phase changed."""
        line = without_colours(line)
        if (
            found := re.search(r"Total training steps: (\d+)|Training Progress:.*?\b\d+/(\d+)\b", line)
        ) is not None:
            self.total_steps = int(found[1] or found[2])
        for position in range(self._next, len(_MARKS)):
            name, mark = _MARKS[position]
            if mark.search(line):
                self.phase, self._next = name, position + 1
                return True
        return False
