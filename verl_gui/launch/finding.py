"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The answer of one check.

    Attributes:
        name: what was looked at.
        found: what is there.
        fix: what to do about it; empty when all is well.
        failed: whether training cannot work without the fix; a mere limitation has a fix, but has not failed.
    """

    name: str
    found: str
    fix: str = ""
    failed: bool = False
