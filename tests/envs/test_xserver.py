import os
import signal

import pytest
from desktop_tools import footprint, gone, x_leftovers

from verl_gui.actions.errors import DisplayGoneError
from verl_gui.actions.x11_display import open_display
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.xserver import XServer

pytestmark = pytest.mark.desktop


@pytest.fixture
def server():
    server = XServer((321, 234))
    yield server
    server.close()


def test_screen_has_the_size_asked_for(server):
    assert server.framebuffer.size == (321, 234)
    display = open_display(server.display, str(server.authority))
    assert display.screen().width_in_pixels == 321
    display.close()


def test_strangers_are_refused(server, tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(DisplayGoneError):
        open_display(server.display, str(tmp_path / "empty"))
    assert os.stat(server.authority).st_mode & 0o077 == 0


def test_input_is_brought_to_rest(server):
    display = open_display(server.display, str(server.authority))
    display.xtest_fake_input(2, 38)  # a key and a button go down
    display.xtest_fake_input(4, 1)
    display.sync()
    server.neutral_input()
    pointer = display.screen().root.query_pointer()
    assert not any(display.query_keymap())
    assert (pointer.root_x, pointer.root_y, pointer.mask) == (320, 233, 0)
    display.close()


def test_nothing_is_left_after_close():
    before = footprint()
    server = XServer((100, 100))
    server.neutral_input()
    server.close()
    server.close()
    assert footprint() == before and not x_leftovers(server.display)


def test_killed_server_is_noticed_and_cleaned_up():
    before = footprint()
    server = XServer((100, 100))
    server.neutral_input()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    with pytest.raises(EnvFailure, match="dead"):
        _ = server.framebuffer
    with pytest.raises(EnvFailure, match="dead"):
        server.neutral_input()
    server.close()
    assert footprint() == before and not x_leftovers(server.display)


def test_hung_server_is_closed_in_bounded_time():
    server = XServer((100, 100))
    os.kill(server.process.pid, signal.SIGSTOP)
    server.close()
    assert gone(server.process.pid)


def test_missing_program_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    before = footprint()
    with pytest.raises(EnvFailure, match="xvfb"):
        XServer((100, 100))
    assert footprint()["directories"] == before["directories"]
