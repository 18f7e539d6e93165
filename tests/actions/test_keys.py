from __future__ import annotations

import pytest

from verl_gui.actions.keys import KEYS, UnknownKeyError, canonical_key, split_combination


@pytest.mark.parametrize(
    ("written", "keys"),
    [
        ("ctrl c", ["ctrl", "c"]),
        ("Ctrl+C", ["ctrl", "c"]),
        ("ctrl-c", ["ctrl", "c"]),
        ("CTRL + SHIFT + t", ["ctrl", "shift", "t"]),
        ("ctrl +", ["ctrl", "+"]),
        ("ctrl++", ["ctrl", "+"]),
        ("ctrl + +", ["ctrl", "+"]),
        ("ctrl -", ["ctrl", "-"]),
        ("ctrl--", ["ctrl", "-"]),
        ("ctrl-", ["ctrl", "-"]),
        ("ctrl+-", ["ctrl", "-"]),
        ("ctrl plus", ["ctrl", "+"]),
        ("+", ["+"]),
        ("-", ["-"]),
        ("ctrl ,", ["ctrl", ","]),
        ("ctrl+alt+delete", ["ctrl", "alt", "delete"]),
        ("alt-f4", ["alt", "f4"]),
        ("page down", ["pagedown"]),
        ("ctrl Page Down", ["ctrl", "pagedown"]),
        ("page_down", ["pagedown"]),
        ("page-down", ["pagedown"]),
        ("PgDn", ["pagedown"]),
        ("arrow left", ["left"]),
        ("LeftArrow", ["left"]),
        ("shift arrowup", ["shift", "up"]),
        ("Return", ["enter"]),
        ("Escape", ["esc"]),
        ("del", ["delete"]),
        ("control meta super windows command", ["ctrl", "win", "win", "win", "win"]),
        ("Super_L", ["winleft"]),
        ("print screen", ["printscreen"]),
        ("space", ["space"]),
        ("F5", ["f5"]),
        ("  enter\n", ["enter"]),
    ],
)
def test_combinations(written: str, keys: list[str]) -> None:
    assert split_combination(written) == tuple(keys)


@pytest.mark.parametrize(
    "written",
    ["", " ", "hyperdrive", "ctrl hyper", "ctrl-hyper", "é", "ctrlc", "f99", "a b c d e f g h i", "a" * 9999],
)
def test_unknown_names_are_never_dropped(written: str) -> None:
    with pytest.raises(UnknownKeyError):
        split_combination(written)


def test_canonical_names_are_their_own_spelling() -> None:
    assert all(canonical_key(key) == key for key in KEYS)
    assert all(split_combination(key) == (key,) for key in KEYS)
    assert all(split_combination(f"ctrl {key}") == ("ctrl", key) for key in KEYS)
