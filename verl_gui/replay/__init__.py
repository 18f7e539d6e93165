"""Replay of successes (ARPO): a pure buffer, its file, and the rule that injects into failed groups."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_gui.replay.buffer import Stored, SuccessBuffer
    from verl_gui.replay.file import BufferFileError
    from verl_gui.replay.injection import Group, Injection, Row, inject
    from verl_gui.replay.packing import PackedRecord, pack, unpack

__all__ = [
    "BufferFileError",
    "Group",
    "Injection",
    "PackedRecord",
    "Row",
    "Stored",
    "SuccessBuffer",
    "inject",
    "pack",
    "unpack",
]

_HOME = {
    "buffer": ("Stored", "SuccessBuffer"),
    "file": ("BufferFileError",),
    "injection": ("Group", "Injection", "Row", "inject"),
    "packing": ("PackedRecord", "pack", "unpack"),
}


def __getattr__(name: str) -> Any:
    """Import a name where it is first used: the command line must not wait for torch."""
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
