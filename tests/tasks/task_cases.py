"""Inputs that broke other systems, with what is right: one JSON object a line, each with its ``cases``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parent / "data" / "cases.jsonl"


def shared_cases(kind: str) -> Any:
    """A parametrization over the cases of one kind."""
    entries = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]
    chosen = [
        (f"{entry['id']}-{i}", case)
        for entry in entries
        for i, case in enumerate(entry["cases"])
        if case["kind"] == kind
    ]
    assert chosen, kind
    return pytest.mark.parametrize("case", [case for _, case in chosen], ids=[name for name, _ in chosen])
