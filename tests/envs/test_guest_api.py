"""The server inside a guest, without a guest around it: pictures, forms, commands, refusals."""

import importlib
import io
import json
import os
import signal
import struct
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

import aiohttp
import numpy as np
import pytest
from PIL import Image

import verl_gui.envs.guest.inside
from verl_gui.envs.remote.http import call

SIZE = (37, 11)


def framebuffer(path, size, padding):
    """A file as Xvfb keeps it, with ``padding`` unused pixels a row; returns its picture."""
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 256, (height, width + padding, 4), dtype=np.uint8)
    words = [0] * 25
    words[0], words[3], words[4], words[5] = 104, 24, width, height
    words[11], words[12], words[19] = 32, 4 * (width + padding), 2
    path.write_bytes(struct.pack(">25I", *words) + b"name" + b"\0" * 24 + pixels.tobytes())
    return Image.fromarray(np.ascontiguousarray(pixels[:, :width, 2::-1]))


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Address of the server; its framebuffer and its home are in ``tmp_path``."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/guest_server").symlink_to(Path(verl_gui.envs.guest.inside.__file__).parent)
    framebuffer(tmp_path / "fb", SIZE, 0)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("GUEST_FRAMEBUFFER", str(tmp_path / "fb"))
    monkeypatch.setenv("HOME", str(tmp_path))
    api = importlib.import_module("guest_server.api")
    running = ThreadingHTTPServer(("127.0.0.1", 0), api.Handler)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "guest_server"]:
        del sys.modules[name]


def post(url, body=None, data=None):
    answer = call("POST", url, timeout_s=20, data=json.dumps(body).encode() if data is None else data)
    return answer.status, answer.body


@pytest.mark.parametrize("padding", [0, 3])
def test_pictures_are_what_the_screen_holds(padding, tmp_path, server):
    picture = framebuffer(tmp_path / "fb", SIZE, padding)
    answer = call("GET", f"{server}/screenshot", timeout_s=20)
    assert answer.content_type == "image/png"
    found = Image.open(io.BytesIO(answer.body))
    assert (found.size, found.mode, found.tobytes()) == (SIZE, "RGB", picture.tobytes())
    assert post(f"{server}/screen_size", {}) == (200, b'{"width": 37, "height": 11}')


def test_commands(server):
    status, body = post(f"{server}/execute", {"command": "echo out; echo err >&2; exit 3", "shell": True})
    assert status == 200
    assert json.loads(body) == {"status": "success", "output": "out\n", "error": "err\n", "returncode": 3}
    _, body = post(f"{server}/setup/execute", {"command": "echo 'a b' c"})
    assert json.loads(body)["output"] == "a b c\n"
    status, body = post(f"{server}/execute", {"command": ["no-such-program"]})
    assert status == 500 and "no-such-program" in json.loads(body)["message"]
    _, body = post(f"{server}/run_python", {"code": "print(6 * 7)"})
    assert json.loads(body)["output"] == "42\n"
    _, body = post(f"{server}/run_bash_script", {"script": "pwd; exit 4", "working_dir": "/usr"})
    assert (json.loads(body)["output"], json.loads(body)["returncode"]) == ("/usr\n", 4)
    _, body = post(f"{server}/run_bash_script", {"script": "sleep 9", "timeout": 0.2})
    assert "timed out" in json.loads(body)["error"]


def test_a_command_ends_although_a_program_that_it_started_runs_on(server):
    _, body = post(f"{server}/run_bash_script", {"script": "sleep 600 & echo $!", "timeout": 10})
    found = json.loads(body)
    assert (found["status"], found["error"]) == ("success", "")
    os.kill(int(found["output"]), signal.SIGKILL)  # or ProcessLookupError: it did not run on


def test_files_go_in_and_come_out_byte_for_byte(server, tmp_path):
    content = bytes(range(256)) * 50 + b"\r\n--\r\n"
    form = aiohttp.FormData()
    form.add_field("file_path", "~/deep/er/file.bin")
    form.add_field("file_data", content, filename="file.bin")
    assert post(f"{server}/setup/upload", data=form)[0] == 200
    assert (tmp_path / "deep/er/file.bin").read_bytes() == content
    wanted = aiohttp.FormData({"file_path": "~/deep/er/file.bin"})
    assert post(f"{server}/file", data=wanted) == (200, content)
    assert post(f"{server}/file", data=aiohttp.FormData({"file_path": "/nothing"}))[0] == 404
    _, body = post(f"{server}/list_directory", {"path": "~/deep"})
    children = json.loads(body)["directory_tree"]["children"]
    assert children == [
        {"name": "er", "type": "directory", "children": [{"name": "file.bin", "type": "file"}]}
    ]


@pytest.mark.parametrize(
    "path, data, status",
    [
        ("/nothing", b"{}", 404),
        ("/execute", b"{}", 400),
        ("/execute", b"no json", 400),
        ("/execute", b"[1]", 400),
        ("/wallpaper", b"", 501),
        ("/start_recording", b"", 501),
        ("/setup/open_file", b'{"path": "/no"}', 404),
        ("/setup/upload", b"", 400),
    ],
)
def test_what_it_cannot_do_is_said(path, data, status, server):
    found, body = post(server + path, data=data)
    assert found == status and json.loads(body)["status"] == "error"
