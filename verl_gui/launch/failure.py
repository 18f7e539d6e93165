"""Finding the error that ended a run in a log where a dozen processes have cried out because of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from verl_gui.launch.follow import without_colours

# Ray's and vLLM's prefix; Ray leaves out a name that it does not know yet.
_SOURCE = re.compile(r"^\((?:([\w.:<>-]+) )?(?:pid=(\d+)(?:, ip=[^)]*)?|raylet)\) ?")
_LOG_HEADER = re.compile(r"^(?:ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] ?")  # vLLM's, inside the prefix
_REPEATED = re.compile(r" ?\[repeated \d+x across cluster\].*$")
_START = "Traceback (most recent call last):"
_EXCEPTION = re.compile(r"^(?!INFO|WARNING|ERROR|DEBUG)(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?::|$)")
_FRAME = re.compile(r'^\s+File "(.+?)", line (\d+), in (.+)$')
_RAY_FRAMES = re.compile(r"^ray::\S+|^ray\.exceptions\.RayTaskError")

# Errors that are always the consequence of another one, in another process.
_CONSEQUENCE = re.compile(
    r"RayTaskError|RayActorError|ActorDied|ActorUnavailable|WorkerCrashed|OwnerDied|EngineDead|EngineCore"
    r"|[Ee]ngine core initialization failed|[Ss]ee root cause|[Ss]ee stack trace|KeyboardInterrupt|SystemExit"
    r"|CancelledError|BrokenPipe|ConnectionReset|ConnectionRefused|EOFError|ZMQError|GeneratorExit|BrokenProcessPool"
    r"|worker processes? .*died"
)
_LOUD_LINE = re.compile(
    r"\b(?:[Ee]rror|ERROR|FATAL|Fatal|Segmentation fault|core dumped|Killed|[Oo]ut of memory|not found"
    r"|No such file|Permission denied|Could not|No module named)\b"
)
_HARMLESS = re.compile(r"[Ww]arning|WARN|INFO|DEBUG")


@dataclass
class Failure:
    """An error found in a log.

    Attributes:
        error: the exception line or, without a traceback, the line that looks most like an error.
        source: process that raised it as Ray names it, ``""`` for the command itself.
        where: ``file:line in function`` of the innermost frame, ``""`` when unknown.
        line: number of the line in the log, from 1.
    """

    error: str
    source: str = ""
    where: str = ""
    line: int = 0


@dataclass
class _Traceback:
    source: str
    line: int
    where: str = ""
    error: str = ""


def first_cause(lines: Iterable[str]) -> Failure | None:
    """The error that the others follow from, or None when the log holds nothing that looks like one.

    The command's own last traceback says what ended the run; when it is only the echo of a dead process, the
    earliest error that is not itself an echo is taken.
    """
    cleaned = [_clean(line) for line in lines]
    found = list(_tracebacks(cleaned))
    real = [traceback for traceback in found if not _CONSEQUENCE.search(traceback.error)]
    if real:
        own = [traceback for traceback in found if not traceback.source]
        fatal = own[-1] if own and own[-1] in real else real[0]
        # The same error, raised in a worker, is passed on to the command: name the place where it began.
        first = next(traceback for traceback in real if traceback.error == fatal.error)
        return Failure(first.error, first.source, first.where, first.line)
    loud = [
        (number, source, text)
        for number, (source, text) in enumerate(cleaned, start=1)
        if _LOUD_LINE.search(text) and not _CONSEQUENCE.search(text) and not _HARMLESS.search(text)
    ]
    if loud:
        number, source, text = loud[-1]
        return Failure(text.strip(), source, "", number)
    if found:
        last = found[-1]
        return Failure(last.error, last.source, last.where, last.line)
    return None


def _clean(line: str) -> tuple[str, str]:
    """Source and text of a log line, without colours, prefixes and Ray's repetition notes."""
    text = _REPEATED.sub("", without_colours(line.rstrip()))
    source = ""
    while (prefix := _SOURCE.match(text)) is not None:
        source = f"{prefix[1] or ''} pid={prefix[2]}".strip() if prefix[2] else "raylet"
        text = text[prefix.end() :]
    return source, _LOG_HEADER.sub("", text)


def _tracebacks(cleaned: list[tuple[str, str]]) -> Iterable[_Traceback]:
    """Every complete traceback with its innermost frame and its exception line, in the order of the log.

    The lines of several processes may be mixed, so each source is followed by itself. A traceback that Ray
    hands on is one text: its own frames, ``ray::…`` lines, then the frames of the worker.
    """
    open_ones: dict[str, _Traceback] = {}
    for number, (source, text) in enumerate(cleaned, start=1):
        current = open_ones.get(source)
        if text.strip() == _START:
            open_ones[source] = _Traceback(source, number)
        elif current is None:
            continue
        elif (frame := _FRAME.match(text)) is not None:
            current.where = f"{frame[1]}:{frame[2]} in {frame[3]}"
        elif _EXCEPTION.match(text) and not _RAY_FRAMES.match(text):
            del open_ones[source]
            current.error = text
            current.line = number
            yield current
