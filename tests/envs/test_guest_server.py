import io
import json
import threading
import time

import aiohttp
import pytest
from desktop_tools import footprint, run_and_kill, wait_until
from desktop_tools import gone as ended
from PIL import Image

from verl_gui.actions import Action, ActionType
from verl_gui.actions.x11_display import open_display
from verl_gui.envs.base import EnvFailure
from verl_gui.envs.checker import check_env
from verl_gui.envs.guest.machine import GuestMachine
from verl_gui.envs.osworld.client import GuestClient
from verl_gui.envs.osworld.env import OsworldEnv
from verl_gui.envs.remote.http import call
from verl_gui.envs.sandbox import bwrap_problem
from verl_gui.tasks.task import Task

pytestmark = [
    pytest.mark.desktop,
    pytest.mark.timeout(200),
    pytest.mark.skipif(bwrap_problem() is not None, reason=f"no sandbox: {bwrap_problem()}"),
]
SCREEN = (800, 600)
IMPOSSIBLE = Task(id="i", instruction="impossible", evaluator={"func": "infeasible"})


@pytest.fixture(scope="module")
def machine():
    machine = GuestMachine(SCREEN)
    yield machine
    machine.close()


@pytest.fixture
def client(machine):
    return GuestClient(machine.url)


def shell(client, script):
    return client.execute(script, shell=True, kind="step", timeout_s=30)


def request(machine, method, path, body=None, data=None):
    if body is not None:
        data = json.dumps(body).encode()
    return call(method, machine.url + path, timeout_s=40, data=data)


def test_screenshots_are_whole_and_of_the_right_colours(machine, client):
    display = open_display(machine._xserver.display, str(machine._xserver.authority))
    root = display.screen().root
    root.change_attributes(background_pixel=0x1080F0)
    root.clear_area()
    # The guest reads the framebuffer itself, which waits for no other client: the drawing must be done.
    display.sync()
    display.close()
    picture = Image.open(io.BytesIO(client.screenshot(SCREEN)))
    assert (picture.size, picture.mode) == (SCREEN, "RGB")
    assert picture.getpixel((5, 5)) == (0x10, 0x80, 0xF0)
    assert picture == Image.open(io.BytesIO(client.screenshot(SCREEN)))


def test_commands(client):
    assert shell(client, "echo out; echo err >&2; exit 3") == type(shell(client, "true"))(3, "out\n", "err\n")
    assert client.execute(["echo", "a b", "~/x"], kind="step").output == "a b /home/user/x\n"
    assert client.execute("echo 'a b' c", kind="step").output == "a b c\n"
    with pytest.raises(EnvFailure, match="No such file"):
        client.execute(["no-such-program"], kind="step")
    sizes = client.execute(["python", "-c", "import pyautogui; print(*pyautogui.size())"], kind="step")
    assert sizes.output == "800 600\n"
    as_root = "echo password | sudo -S touch ~/by-sudo; ls ~/by-sudo"
    assert shell(client, as_root).output == "/home/user/by-sudo\n"


def test_what_runs_inside_reaches_neither_network_nor_files(machine, client):
    assert shell(client, f"ls {__file__} /root").code != 0
    assert shell(client, "tail -n +3 /proc/net/dev | cut -d: -f1").output.split() == ["lo"]
    probe = f"import socket; socket.create_connection(('127.0.0.1', {machine.port}), 2)"
    assert "refused" in client.execute(["python", "-c", probe], kind="step").error


def test_files_go_in_and_come_out_byte_for_byte(machine, client):
    content = bytes(range(256)) * 50 + b"\r\n--\r\n"
    client.upload("~/deep/er/file.bin", content, kind="reset")
    form = aiohttp.FormData({"file_path": "/home/user/deep/er/file.bin"})
    assert request(machine, "POST", "/file", data=form).body == content
    gone = request(machine, "POST", "/file", data=aiohttp.FormData({"file_path": "/nothing"}))
    assert gone.status == 404
    tree = json.loads(request(machine, "POST", "/list_directory", {"path": "~/deep"}).body)["directory_tree"]
    assert tree["children"][0]["children"] == [{"name": "file.bin", "type": "file"}]


def test_windows_are_opened_activated_measured_and_closed(machine, client):
    client.upload("~/note.txt", b"hello", kind="reset")
    client.post("/setup/open_file", {"path": "~/note.txt"}, kind="reset")
    client.post("/setup/activate_window", {"window_name": "note.txt"}, kind="reset")
    size = request(machine, "POST", "/window_size", data=aiohttp.FormData({"app_class_name": "mousepad"}))
    assert json.loads(size.body)["width"] > 100
    client.post("/setup/close_window", {"window_name": "note.txt"}, kind="reset")
    assert wait_until(lambda: "note.txt" not in shell(client, "wmctrl -l").output)
    with pytest.raises(EnvFailure, match="no window"):
        client.post("/setup/activate_window", {"window_name": "note.txt"}, kind="reset")
    with pytest.raises(EnvFailure, match="no such file"):
        client.post("/setup/open_file", {"path": "~/nothing"}, kind="reset")


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("GET", "/accessibility", None, 501),
        ("GET", "/terminal", None, 501),
        ("POST", "/wallpaper", None, 501),
        ("GET", "/nothing", None, 404),
        ("POST", "/execute", {}, 400),
        ("POST", "/run_python", {"code": "1/0"}, 200),
    ],
)
def test_what_it_cannot_do_is_said(machine, method, path, body, status):
    answer = request(machine, method, path, body)
    assert answer.status == status and json.loads(answer.body)["status"] == "error"


def test_a_slow_command_does_not_keep_others_waiting(machine, client):
    slow = threading.Thread(target=lambda: shell(client, "sleep 3"))
    slow.start()
    began = time.monotonic()
    client.screenshot(SCREEN)
    assert time.monotonic() - began < 2.5
    slow.join()


@pytest.mark.parametrize("case", [{"id": "B61-0", "minutes": 10, "expect": "no lock screen"}])
def test_the_screen_is_never_locked_or_blanked(case, machine, client):
    """However long the model thinks: nothing in the guest measures idleness."""
    assert case["expect"] == "no lock screen"
    programs = shell(client, "ps -e -o comm=").output
    assert not any(name in programs for name in ("lock", "saver", "idle"))
    display = open_display(machine._xserver.display, str(machine._xserver.authority))
    assert display.get_screen_saver().timeout == 0
    assert not display.has_extension("DPMS")
    display.close()


def test_the_contract_and_nothing_left_behind(tmp_path):
    before = footprint()
    check_env(OsworldEnv(SCREEN, cache=str(tmp_path), pause_s=0.1), IMPOSSIBLE, same_pixels=False)
    assert wait_until(lambda: footprint() == before)


def test_a_paused_guest_wakes_by_itself(tmp_path):
    env = OsworldEnv(SCREEN, cache=str(tmp_path), pause_s=0)
    try:
        env.reset(IMPOSSIBLE)
        env.pause()
        assert env.step([Action(ActionType.HOVER, x=5, y=5)]).observation.size == SCREEN
    finally:
        env.close()


def test_a_killed_guest_is_dead_and_the_next_reset_works(tmp_path):
    env = OsworldEnv(SCREEN, cache=str(tmp_path), pause_s=0)
    try:
        env.reset(IMPOSSIBLE)
        env._guests._machine._process.host_process.kill()
        with pytest.raises(EnvFailure) as failure:
            env.step([Action(ActionType.HOVER, x=5, y=5)])
        assert failure.value.kind in ("dead", "step")
        assert env.reset(IMPOSSIBLE).size == SCREEN
    finally:
        env.close()


def test_a_killed_owner_leaves_no_process():
    _, _, descendants = run_and_kill(
        "from verl_gui.envs.guest.machine import GuestMachine\n"
        "machine = GuestMachine((640, 480)); print('[]', flush=True)"
    )
    assert len(descendants) >= 3
    assert wait_until(lambda: all(ended(pid) for pid in descendants))
