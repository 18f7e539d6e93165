"""Inputs that broke other environments, with what is right. One JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parent / "data" / "cases.jsonl"
CASES = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]


def cases(kind: str) -> Any:
    """A parametrization over the cases of one kind."""
    chosen = [case for case in CASES if case["kind"] == kind]
    assert chosen, kind
    return pytest.mark.parametrize("case", chosen, ids=[case["id"] for case in chosen])
