"""Grammars: how a model writes actions. One class a grammar, found by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from verl_gui.actions.coordinates import Size
from verl_gui.actions.types import Action, Response

LANGUAGES = {"en": "English", "zh": "Chinese"}


class Grammar(ABC):
    """Reads and writes the answers of one family of models.

    A grammar is a pure function of its input: no state, no I/O. ``parse(format(actions)) == actions`` for
    every list of actions it has words for, if their coordinates are whole numbers of the frame.
    """

    name: str
    frame: Size | None = None
    """Fixed frame of models that answer in relative units; ``None`` if in pixels of the picture."""

    @abstractmethod
    def parse(self, text: str, *, frame: Size, screen: Size) -> Response:
        """Read an answer. Raises ActionFormatError, and nothing else, whatever ``text`` holds."""

    @abstractmethod
    def format(self, actions: Sequence[Action], *, thought: str = "", frame: Size, screen: Size) -> str:
        """Write an answer that :meth:`parse` reads back. Raises UnsupportedActionError."""

    @abstractmethod
    def system_prompt(self, language: str = "en", *, frame: Size | None = None) -> str:
        """The instructions for the model: the form of an answer and the actions it may use.

        Args:
            language: language of the model's thoughts, as a code (``en``, ``zh``) or spelled out.
            frame: size of the pictures the model sees, for prompts that state it.
        """


_GRAMMARS: dict[str, Grammar] = {}


def register_grammar(grammar: Grammar) -> Grammar:
    """Make ``grammar`` available under its name.

    Raises:
        ValueError: the name is taken by another grammar.
    """
    if _GRAMMARS.setdefault(grammar.name, grammar) is not grammar:
        raise ValueError(f"a grammar named {grammar.name!r} is registered already")
    return grammar


def get_grammar(name: str) -> Grammar:
    """The grammar registered as ``name``. Raises KeyError that lists the names there are."""
    if name not in _GRAMMARS:
        raise KeyError(f"no grammar named {name!r}; there are {sorted(_GRAMMARS)}")
    return _GRAMMARS[name]


def grammar_names() -> list[str]:
    """Names of all registered grammars."""
    return sorted(_GRAMMARS)


def parse(text: str, *, grammar: str = "uitars", frame: Size | None = None, screen: Size) -> Response:
    """Read a model's answer.

    Args:
        text: what the model wrote.
        grammar: name of the model's grammar.
        frame: size of the picture the model saw, (width, height); see ``frame_from_grid``. Grammars of
            relative coordinates have their own frame and ignore it.
        screen: size of the real screen, (width, height).

    Returns:
        The thought and the actions; coordinates are screen pixels, clamped to the screen.

    Raises:
        ActionFormatError: the answer isn't in the grammar.
        ValueError: ``frame`` is missing or a size isn't positive.
    """
    reader = get_grammar(grammar)
    return reader.parse(text, frame=_frame(reader, frame), screen=_size(screen, "screen"))


def format_actions(
    actions: Sequence[Action],
    *,
    grammar: str = "uitars",
    frame: Size | None = None,
    screen: Size,
    thought: str = "",
) -> str:
    """Write actions as a model of ``grammar`` would; arguments as in :func:`parse`.

    Raises:
        UnsupportedActionError: the grammar has no words for an action.
    """
    writer = get_grammar(grammar)
    seen, real = _frame(writer, frame), _size(screen, "screen")
    return writer.format(actions, thought=thought, frame=seen, screen=real)


def _frame(grammar: Grammar, frame: Size | None) -> Size:
    if grammar.frame is not None:
        return grammar.frame
    if frame is None:
        raise ValueError(f"grammar {grammar.name!r} needs the frame the model saw")
    return _size(frame, "frame")


def _size(size: Size, name: str) -> Size:
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"{name} must be (width, height) in pixels, got {size!r}")
    return int(size[0]), int(size[1])
