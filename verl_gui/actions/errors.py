"""Errors of the action space."""

from __future__ import annotations

_SHOWN = 160


class ActionFormatError(ValueError):
    """The model's answer isn't a sentence of the grammar. It is the model's fault, never the environment's.

    Attributes:
        reason: what is wrong, in one sentence.
        text: the whole answer.
        piece: the part of ``text`` that is wrong; empty if something is missing.
        position: index of ``piece`` in ``text``.
    """

    def __init__(self, reason: str, text: str, piece: str = "", position: int = 0) -> None:
        super().__init__(reason, text, piece, position)
        self.reason = reason
        self.text = text
        self.piece = piece
        self.position = position

    def __str__(self) -> str:
        shown = self.piece if len(self.piece) <= _SHOWN else self.piece[:_SHOWN] + "…"
        return f"{self.reason} (at {self.position}: {shown!r})"


class UnsupportedActionError(ValueError):
    """A grammar has no words for an action it was asked to write."""


class ExecutorError(RuntimeError):
    """An executor could not deliver an action. It is the environment's fault, never the model's."""


class DisplayGoneError(ExecutorError):
    """The X server can't be reached, closed the connection, or stopped answering."""
