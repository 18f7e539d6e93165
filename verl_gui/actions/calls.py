"""Reads `name(argument='value', ...)` calls as models write them. Finds the pieces; gives them no meaning.

Models don't escape reliably, so a quoted value ends at the first unescaped quote that can only be the end:
one followed by the next known argument, or by the closing bracket and the end of the line. Every other quote
belongs to the value. All scans go forward only, so the time is linear in the length of the answer.

An answer may break off after a coordinate argument, whose numbers show by themselves whether they are whole.
After any other argument it may not: half a text looks like a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from verl_gui.actions.errors import ActionFormatError

_NAME = re.compile(r"[A-Za-z_]\w{0,40}")
_OPEN = re.compile(r"\s*[(（]\s*")
_CLOSE = re.compile(r"\s*[)）]")
_COMMA = re.compile(r"\s*[,，]\s*")
_ASSIGN = re.compile(r"\s*[=＝]\s*")
_BLANK = re.compile(r"\s*")
_LINE_END = re.compile(r"[^\S\n]*(?:\n\s*|\Z)")

_CLOSING_QUOTE = {"'": "'", '"': '"', "‘": "’", "’": "’", "“": "”", "”": "”", "＇": "＇", "＂": "＂"}
_ASCII_QUOTES = "'\""


@dataclass(frozen=True)
class Value:
    """The text between the quotes of an argument, and where it begins in the answer.

    ``closed`` is false if the answer ended before the quote was closed.
    """

    text: str
    position: int
    closed: bool = True


@dataclass(frozen=True)
class Call:
    """A call: its name, its argument values by canonical name, and where it stands in the answer."""

    name: str
    arguments: dict[str, Value]
    position: int
    end: int


@dataclass(frozen=True)
class Signature:
    """What a call may hold: argument spellings to canonical names, and which of these are coordinates."""

    arguments: Mapping[str, str]
    boxes: frozenset[str]


def read_calls(text: str, start: int, end: int, signatures: Mapping[str, Signature]) -> list[Call]:
    """All calls in ``text[start:end]``, each on lines of its own.

    Raises:
        ActionFormatError: a call is unknown or broken, or there is something other than calls.
    """
    calls = []
    position = _skip(_BLANK, text, start, end)
    while position < end:
        call = _read_call(text, position, end, signatures)
        calls.append(call)
        line_end = _LINE_END.match(text, call.end, end)
        if line_end is None:
            raise _error("there is more after the call", text, call.end, end)
        position = line_end.end()
    return calls


def _read_call(text: str, start: int, end: int, signatures: Mapping[str, Signature]) -> Call:
    name = _NAME.match(text, start, end)
    bracket = _OPEN.match(text, name.end(), end) if name else None
    if name is None or bracket is None:
        raise _error("expected a call such as wait()", text, start, end)
    signature = signatures.get(name.group())
    if signature is None:
        raise ActionFormatError(f"unknown action {name.group()!r}", text, name.group(), start)
    arguments: dict[str, Value] = {}
    position = bracket.end()
    while True:
        close = _CLOSE.match(text, position, end)
        if close:
            return Call(name.group(), arguments, start, close.end())
        if arguments:
            comma = _COMMA.match(text, position, end)
            if comma is None:
                raise _error("expected ',' or ')' after the argument", text, position, end)
            position = comma.end()
        key, value, position = _read_argument(text, position, end, signature)
        if key in arguments:
            raise ActionFormatError(f"argument {key!r} is given twice", text, value.text, value.position)
        arguments[key] = value
        if key in signature.boxes and position == end:
            return Call(name.group(), arguments, start, end)


def _read_argument(text: str, start: int, end: int, signature: Signature) -> tuple[str, Value, int]:
    """Canonical name, value and the position after the closing quote."""
    name = _NAME.match(text, start, end)
    assign = _ASSIGN.match(text, name.end(), end) if name else None
    if name is None or assign is None:
        raise _error("expected an argument such as name='value'", text, start, end)
    key = signature.arguments.get(name.group())
    if key is None:
        raise ActionFormatError(f"unknown argument {name.group()!r}", text, name.group(), start)
    is_box = key in signature.boxes
    quote = text[assign.end() : assign.end() + 1] if assign.end() < end else ""
    if not quote or quote not in (_CLOSING_QUOTE if is_box else _ASCII_QUOTES):
        raise _error(f"the value of {name.group()!r} must be in quotes", text, assign.end(), end)
    first = assign.end() + 1
    if is_box:
        last = text.find(_CLOSING_QUOTE[quote], first, end)
    else:
        last = _find_closing_quote(text, first, end, quote, tuple(signature.arguments))
    if last < 0 and not is_box:
        raise _error(f"the value of {name.group()!r} is not closed", text, assign.end(), end)
    if last < 0:
        return key, Value(text[first:end], first, closed=False), end
    return key, Value(text[first:last], first), last + 1


def _find_closing_quote(text: str, start: int, end: int, quote: str, arguments: tuple[str, ...]) -> int:
    for found in _closing_pattern(quote, arguments).finditer(text, start, end):
        if found.group(1):
            return found.start(1)
    return -1


@lru_cache(maxsize=256)
def _closing_pattern(quote: str, arguments: tuple[str, ...]) -> re.Pattern[str]:
    """Matches an escape (to step over it), or the closing quote as group 1."""
    names = "|".join(map(re.escape, arguments))
    next_argument = rf"\s*[,，]\s*(?:{names})\s*[=＝]\s*['\"‘’“”＇＂]"
    end_of_call = r"\s*[)）][^\S\n]*(?:\n|\Z)"
    return re.compile(rf"\\.|({quote})(?={next_argument}|{end_of_call})", re.DOTALL)


def _skip(pattern: re.Pattern[str], text: str, start: int, end: int) -> int:
    found = pattern.match(text, start, end)
    return found.end() if found else start


def _error(reason: str, text: str, start: int, end: int) -> ActionFormatError:
    return ActionFormatError(reason, text, text[start:end], start)
