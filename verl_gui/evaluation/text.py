"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def align(lines: Sequence[Sequence[str]]) -> str:
    """Cells under each other: the first column to the left, the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join(text) + "\n"
