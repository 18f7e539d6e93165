"""The reference of the ``gui:`` keys, written from the dataclasses themselves.

python -m verl_gui.config_reference > docs/configuration.md
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

from verl_gui.config import GuiConfig

HEADER = """# Configuration

Every key under `gui:`. The rest of a recipe is verl's own configuration. This page is generated:
`python -m verl_gui.config_reference > docs/configuration.md`.
"""


def comments(cls: type) -> dict[str, str]:
    """The sentence under each field of a dataclass."""
    body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    found = {}
    for statement, after in itertools.pairwise(body):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[statement.target.id] = " ".join(str(after.value.value).split())
    return found


def keys(cls: type, prefix: str = "gui") -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and comment of every key below ``cls``."""
    hints, said = get_type_hints(cls), comments(cls)
    for item in dataclasses.fields(cls):
        kind = hints[item.name]
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            yield from keys(kind, f"{prefix}.{item.name}")
            continue
        default: Any = item.default
        if item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        shown = "required" if default is dataclasses.MISSING else f"`{_yaml(default)}`"
        name = (
            getattr(kind, "__name__", str(kind))
            if isinstance(kind, type)
            else str(kind).replace("typing.", "")
        )
        yield f"{prefix}.{item.name}", name, shown, said[item.name]


def _yaml(value: Any) -> str:
    plain = {None: "null", True: "true", False: "false"}
    return plain[value] if value is None or isinstance(value, bool) else str(value)


def reference() -> str:
    """The whole page, Markdown."""
    lines = [HEADER]
    section = ""
    for name, kind, default, comment in keys(GuiConfig):
        node = name.rpartition(".")[0]
        if node != section:
            section = node
            lines += ["", f"## `{node}`", "", "| key | type | default | what it is |", "|---|---|---|---|"]
        cells = [
            f"`{name.rpartition('.')[2]}`",
            f"`{kind}`".replace("|", "\\|"),
            default,
            comment.replace("|", "\\|"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
