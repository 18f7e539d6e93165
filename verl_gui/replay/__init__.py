"""Replay of successes (ARPO): a pure buffer, its file, and the rule that injects into failed groups."""

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
