"""Types into real programs on a real X server, through every executor, and reads back what arrived.

Needs Xvfb, openbox, xclip, xterm, setxkbmap and Tk. The pyautogui source runs in the interpreter named by
VERL_GUI_PYAUTOGUI_PYTHON, or in this one; either must have pyautogui and pyperclip.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shared_cases import cases
from Xlib import X, error

from verl_gui.actions import Action, ActionType, DisplayGoneError, to_pyautogui
from verl_gui.actions.x11 import X11Executor
from verl_gui.actions.x11_clipboard import CLIPBOARD, Offer, read_selection, text_contents
from verl_gui.actions.x11_display import open_display

pytestmark = pytest.mark.desktop
T = ActionType

ASCII = "".join(map(chr, range(0x20, 0x7F)))
TEXTS = [
    ASCII,
    "café ÄÖÜß ñ ø € £",
    "北京天气 こんにちは 한국어",
    "Привет, мир",
    "smile 😀 and 👍🏽 done",
    "a\tb\n\n<c> 'd' \"e\"\n",
]
TEXT_FIELD = """
import os, sys, tkinter
root = tkinter.Tk()
root.title(sys.argv[1])
root.geometry("600x400+0+0")
text = tkinter.Text(root)
text.pack(fill="both", expand=True)
events = open(sys.argv[2], "a", buffering=1)
def note(name):
    def write(event):
        parts = name, event.num, event.keysym, event.state, event.x_root, event.y_root
        events.write(" ".join(map(str, parts)) + "\\n")
    root.bind_all(name, write, "+")
names = "<Button> <Double-Button-1> <Triple-Button-1> <B1-Motion> <KeyPress> <KeyRelease>"
for name in names.split():
    note(name)
text.bind("<FocusIn>", lambda e: events.write("focus\\n"))
def save():
    content = text.get("1.0", "end-1c").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    # Readers must find the old content or the new one, never a file that is being written.
    with open(sys.argv[1] + ".new", "w", encoding="utf-8") as file:
        file.write(content)
    os.replace(file.name, sys.argv[1])
    root.after(10, save)
text.focus_force()
save()
root.mainloop()
"""


class Desktop:
    """An X server with a cookie of its own, a window manager, and the programs started on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.xauthority = folder / "cookies"
        self._processes: list[subprocess.Popen[bytes]] = []
        cookie = secrets.token_bytes(16)
        self.xauthority.write_bytes(_cookie_entry(b"", cookie))
        reader, writer = os.pipe()
        self.server = subprocess.Popen(
            ["Xvfb", "-displayfd", str(writer), "-screen", "0", "800x600x24", "-nolisten", "tcp",
             "-auth", str(self.xauthority)],
            pass_fds=[writer], stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(writer)
        with os.fdopen(reader) as lines:
            number = lines.readline().strip()
        self.name = f":{number}"
        # libX11 looks for the entry of this host (family 256) and display.
        self.xauthority.write_bytes(_cookie_entry(number.encode(), cookie))
        self.start("openbox")
        self._watch = open_display(self.name, str(self.xauthority))
        wait_for(lambda: self._root_property("_NET_CLIENT_LIST") is not None, "the window manager")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "DISPLAY": self.name, "XAUTHORITY": str(self.xauthority)}

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._processes.append(process)
        return process

    def windows(self) -> list[str]:
        """Titles of the windows the window manager knows, the one with the focus first."""
        active = self._root_property("_NET_ACTIVE_WINDOW") or [0]
        known = sorted(self._root_property("_NET_CLIENT_LIST") or [], key=lambda window: window != active[0])
        titles = [""] if active[0] not in known else []
        for window in known:
            with contextlib.suppress(error.BadWindow):  # closed meanwhile
                titles.append(self._watch.create_resource_object("window", window).get_wm_name() or "")
        return titles

    def _root_property(self, name: str) -> list[int] | None:
        found = self._watch.screen().root.get_full_property(self._watch.intern_atom(name), X.AnyPropertyType)
        return None if found is None else list(found.value)

    def executor(self, **options: float) -> X11Executor:
        return X11Executor(self.name, str(self.xauthority), **options)

    def stop(self) -> None:
        self._watch.close()
        for process in [*reversed(self._processes), self.server]:
            process.terminate()
            process.wait(10)


def _cookie_entry(number: bytes, cookie: bytes) -> bytes:
    fields = (os.uname().nodename.encode(), number, b"MIT-MAGIC-COOKIE-1", cookie)
    return struct.pack(">H", 256) + b"".join(struct.pack(">H", len(field)) + field for field in fields)


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until, f"{what} took longer than {timeout_s} s"
        time.sleep(0.01)


class TextField:
    """A Tk text field that writes its content, and the events it saw, to files."""

    def __init__(self, desktop: Desktop) -> None:
        self._content = desktop.folder / f"content-{time.monotonic_ns()}"
        self._events = desktop.folder / f"events-{time.monotonic_ns()}"
        self._events.touch()
        self.process = desktop.start(sys.executable, "-c", TEXT_FIELD, str(self._content), str(self._events))
        # A window that closed just before can take the focus along, so it must have gone too.
        wait_for(
            lambda: "focus" in self.events() and desktop.windows() == [str(self._content)], "the text field"
        )

    def content(self) -> str:
        return self._content.read_text(encoding="utf-8") if self._content.exists() else ""

    def events(self) -> list[str]:
        return self._events.read_text().splitlines()

    def expect(self, text: str) -> None:
        until = time.monotonic() + 10
        while (content := self.content()) != text and time.monotonic() < until:
            time.sleep(0.01)
        assert content == text


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desktop]:
    started = Desktop(tmp_path_factory.mktemp("desktop"))
    yield started
    started.stop()


@pytest.fixture
def field(desktop: Desktop) -> Iterator[TextField]:
    opened = TextField(desktop)
    yield opened
    opened.process.terminate()
    opened.process.wait(10)


def type_through_x11(desktop: Desktop, text: str) -> None:
    executor = desktop.executor()
    executor.perform([Action(T.TYPE, text=text)])
    executor.close()


def type_through_pyautogui(desktop: Desktop, text: str) -> None:
    python = os.environ.get("VERL_GUI_PYAUTOGUI_PYTHON", sys.executable)
    subprocess.run(
        [python, "-c", to_pyautogui([Action(T.TYPE, text=text)])],
        env=desktop.environment,
        check=True,
        timeout=60,
        stdout=subprocess.DEVNULL,
    )


EXECUTORS = [type_through_x11, type_through_pyautogui]


@pytest.mark.parametrize("send", EXECUTORS)
@pytest.mark.parametrize("text", TEXTS)
def test_text_arrives_whole(desktop: Desktop, field: TextField, send, text: str) -> None:
    send(desktop, text)
    field.expect(text)


@pytest.mark.parametrize("send", EXECUTORS)
@cases("typing")
def test_shared_cases_arrive(desktop: Desktop, field: TextField, send, case) -> None:
    enter = "\n" * case.get("enter", 0)
    send(desktop, case["text"] + enter)
    field.expect(case["expect"] + enter)


@pytest.mark.parametrize("layout", ["de", "fr", "us -variant intl", "ru"])
def test_other_layouts(desktop: Desktop, field: TextField, layout: str) -> None:
    text = ASCII + "\näöüéß"
    subprocess.run(["setxkbmap", *layout.split()], env=desktop.environment, check=True, timeout=10)
    try:
        type_through_x11(desktop, text)
        field.expect(text)
    finally:
        subprocess.run(["setxkbmap", "us"], env=desktop.environment, check=True, timeout=10)


def test_caps_lock_changes_nothing(desktop: Desktop, field: TextField) -> None:
    executor = desktop.executor()
    caps_lock = Action(T.PRESS, keys=("capslock",))
    executor.perform([caps_lock, Action(T.TYPE, text="aB1! é"), caps_lock])
    field.expect("aB1! é")
    executor.close()


def test_terminal_gets_the_text_too(desktop: Desktop) -> None:
    out = desktop.folder / "terminal"
    ready = desktop.folder / "ready"
    program = f"touch {ready}; cat > {out}"
    xterm = desktop.start("xterm", "-u8", "-e", "sh", "-c", program)
    wait_for(ready.exists, "xterm")
    time.sleep(0.5)
    type_through_x11(desktop, "ls <a> | x\ncafé 北京\n")
    wait_for(lambda: out.exists() and out.read_text().count("\n") == 2, "the text")
    assert out.read_text() == "ls <a> | x\ncafé 北京\n"
    xterm.terminate()
    xterm.wait(10)


def test_the_clipboard_is_put_back(desktop: Desktop, field: TextField) -> None:
    before = Offer(desktop.name, str(desktop.xauthority), (CLIPBOARD,), text_contents("précieux"))
    executor = desktop.executor()
    executor.perform([Action(T.TYPE, text="北京")])
    field.expect("北京")
    assert (
        read_selection(desktop.name, str(desktop.xauthority), CLIPBOARD)["UTF8_STRING"].data
        == "précieux".encode()
    )
    executor.perform([Action(T.TYPE, text="天气"), Action(T.HOTKEY, keys=("ctrl", "v"))])
    field.expect("北京天气précieux")
    executor.close()
    before.close()


def test_text_without_a_field_is_no_error(desktop: Desktop) -> None:
    executor = desktop.executor()
    executor.perform([Action(T.TYPE, text="é")])
    executor.close()


def test_pointer_and_keys(desktop: Desktop, field: TextField) -> None:
    executor = desktop.executor(default_wait_s=0.01)
    executor.perform(
        [
            Action(T.CLICK, x=100.4, y=99.6),
            Action(T.RIGHT_SINGLE, x=110, y=110),
            Action(T.MIDDLE, x=120, y=120),
            Action(T.WAIT),
            Action(T.SCROLL, x=130, y=130, direction="down", amount=2),
            Action(T.SCROLL, direction="left", amount=1),
            Action(T.DRAG, x=50, y=50, end_x=150, end_y=150),
            Action(T.KEY_DOWN, keys=("shift",)),
            Action(T.PRESS, keys=("a",)),
            Action(T.FINISHED),
        ]
    )
    executor.release_all()
    executor.perform([Action(T.PRESS, keys=("b",)), Action(T.LEFT_TRIPLE, x=200, y=200)])
    wait_for(lambda: any(line.startswith("<Triple") for line in field.events()), "the events")
    seen = [line.split() for line in field.events()]
    buttons = [(event[1], int(event[3]) & 1, event[4], event[5]) for event in seen if event[0] == "<Button>"]
    assert buttons[:6] == [
        ("1", 0, "100", "100"),
        ("3", 0, "110", "110"),
        ("2", 0, "120", "120"),
        ("5", 0, "130", "130"),
        ("5", 0, "130", "130"),
        # Tk shows the horizontal wheel as the vertical one with shift.
        ("4", 1, "130", "130"),
    ]
    motions = [event for event in seen if event[0] == "<B1-Motion>"]
    assert len(motions) > 3 and motions[-1][4:] == ["150", "150"]
    keys = [(event[0], event[2]) for event in seen if event[0].startswith("<Key")]
    assert keys == [
        ("<KeyPress>", "Shift_L"),
        ("<KeyPress>", "A"),
        ("<KeyRelease>", "A"),
        ("<KeyRelease>", "Shift_L"),
        ("<KeyPress>", "b"),
        ("<KeyRelease>", "b"),
    ]
    executor.close()


def test_the_cookie_is_needed(desktop: Desktop, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(_cookie_entry(b"", b"0" * 16))
    with pytest.raises(DisplayGoneError):
        X11Executor(desktop.name, str(wrong))
    with pytest.raises(DisplayGoneError):
        X11Executor(desktop.name, str(tmp_path / "missing"))


def test_a_server_that_dies_or_freezes_is_a_typed_error(tmp_path: Path) -> None:
    desktop = Desktop(tmp_path)
    executor = desktop.executor(timeout_s=0.5)
    dying = desktop.executor()
    desktop.server.send_signal(19)
    with pytest.raises(DisplayGoneError, match="no answer within"):
        executor.perform([Action(T.CLICK, x=1, y=1)])
    desktop.server.send_signal(18)
    desktop.stop()
    with pytest.raises(DisplayGoneError):
        dying.perform([Action(T.CLICK, x=1, y=1)])
    with pytest.raises(DisplayGoneError):
        desktop.executor()
    dying.close()
