"""The requests of OSWorld's guest interface.

What this guest cannot do (the accessibility tree, the terminal's text, wallpapers, recordings) is answered
with status 501 and the reason, never with something made up.
"""

import json
import os
import subprocess
import time
import traceback
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

from guest_server import commands, framebuffer, windows

FRAMEBUFFER = os.environ["GUEST_FRAMEBUFFER"]
MAX_BODY_BYTES = 128 << 20
_REQUEST_TIMEOUT_S = 60
_WINDOW_TIMEOUT_S = 30


class Problem(Exception):
    """An answer that is an error: status and reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _unsupported(what: str) -> "Route":
    def answer(_: "Handler") -> Any:
        raise Problem(501, f"this guest has no {what}")

    return answer


def _execute(request: "Handler") -> Any:
    body = request.json()
    try:
        return commands.execute(body["command"], body.get("shell", False))
    except subprocess.TimeoutExpired as error:
        raise Problem(500, f"the command took longer than {error.timeout} s") from error
    except OSError as error:
        raise Problem(500, str(error)) from error


def _execute_with_verification(request: "Handler") -> Any:
    body = request.json()
    result = _execute(request)
    wanted = body.get("verification") or {}
    deadline = time.monotonic() + float(body.get("max_wait_time", 10))
    while not _verified(wanted):
        if time.monotonic() > deadline:
            raise Problem(500, f"not so after {body.get('max_wait_time', 10)} s: {wanted}")
        time.sleep(float(body.get("check_interval", 1.0)))
    return {**result, "verification": {"passed": True}}


def _verified(wanted: dict[str, Any]) -> bool:
    title = wanted.get("window_exists")
    if title and not any(title in line for line in windows.titles()):
        return False
    command = wanted.get("command_success")
    return not command or commands.execute(command, shell=True, timeout_s=5)["returncode"] == 0


def _run_python(request: "Handler") -> Any:
    result = commands.execute(["python3", "-c", request.json()["code"]])
    status = "success" if result["returncode"] == 0 else "error"
    return {**result, "status": status, "message": result["error"] or result["output"]}


def _run_bash_script(request: "Handler") -> Any:
    body = request.json()
    command = ["bash", "-c", body["script"]]
    if body.get("working_dir"):
        command = ["env", "-C", os.path.expanduser(body["working_dir"]), *command]
    try:
        result = commands.execute(command, timeout_s=float(body.get("timeout") or 30))
    except subprocess.TimeoutExpired as error:
        return {
            "status": "error",
            "output": "",
            "error": f"timed out after {error.timeout} s",
            "returncode": -1,
        }
    return {**result, "status": "success" if result["returncode"] == 0 else "error"}


def _launch(request: "Handler") -> Any:
    body = request.json()
    try:
        commands.launch(body["command"], body.get("shell", False))
    except OSError as error:
        raise Problem(500, str(error)) from error
    return f"{body['command']} launched successfully".encode()


def _open_file(request: "Handler") -> Any:
    path = os.path.expanduser(request.json()["path"])
    if not os.path.exists(path):
        raise Problem(404, f"no such file: {path}")
    command = commands.opener(path)
    if command is None:
        raise Problem(501, f"this guest has no program that opens {path}")
    before = windows.titles()
    commands.launch(command)
    if not windows.wait_for_new(before, _WINDOW_TIMEOUT_S):
        raise Problem(500, f"{command[0]} opened no window in {_WINDOW_TIMEOUT_S} s")
    return b"File opened successfully"


def _window_call(act: Callable[[str, bool, bool], bool]) -> "Route":
    def answer(request: "Handler") -> bytes:
        body = request.json()
        if not act(body["window_name"], body.get("strict", False), body.get("by_class", False)):
            raise Problem(404, f"no window {body['window_name']!r}")
        return b"done"

    return answer


def _upload(request: "Handler") -> Any:
    fields = request.form()
    path = os.path.expanduser(fields["file_path"].decode())
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(fields["file_data"])
    return b"File Uploaded"


def _file(request: "Handler") -> Any:
    path = os.path.expandvars(os.path.expanduser(request.form()["file_path"].decode()))
    if not os.path.isfile(path):
        raise Problem(404, f"no such file: {path}")
    with open(path, "rb") as file:
        return file.read()


def _window_size(request: "Handler") -> Any:
    found = windows.size_of_class(request.form()["app_class_name"].decode())
    if found is None:
        raise Problem(404, "no such window")
    return {"width": found[0], "height": found[1]}


def _screen_size(_: "Handler") -> Any:
    width, height = framebuffer.read_size(FRAMEBUFFER)
    return {"width": width, "height": height}


def _list_directory(request: "Handler") -> Any:
    return {"directory_tree": _tree(os.path.expanduser(request.json()["path"]))}


def _tree(path: str) -> dict[str, Any]:
    node: dict[str, Any] = {"name": os.path.basename(path), "type": "directory"}
    node["children"] = [
        _tree(entry.path) if entry.is_dir(follow_symlinks=False) else {"name": entry.name, "type": "file"}
        for entry in sorted(os.scandir(path), key=lambda entry: entry.name)
    ]
    return node


ROUTES: dict[tuple[str, str], "Route"] = {
    ("GET", "/screenshot"): lambda _: framebuffer.screenshot(FRAMEBUFFER),
    ("GET", "/platform"): lambda _: b"Linux",
    ("GET", "/cursor_position"): lambda _: list(windows.pointer()),
    ("GET", "/accessibility"): _unsupported("accessibility tree"),
    ("GET", "/terminal"): _unsupported("access to the text of terminals"),
    ("POST", "/execute"): _execute,
    ("POST", "/setup/execute"): _execute,
    ("POST", "/execute_with_verification"): _execute_with_verification,
    ("POST", "/setup/execute_with_verification"): _execute_with_verification,
    ("POST", "/run_python"): _run_python,
    ("POST", "/run_bash_script"): _run_bash_script,
    ("POST", "/setup/launch"): _launch,
    ("POST", "/setup/open_file"): _open_file,
    ("POST", "/setup/activate_window"): _window_call(windows.activate),
    ("POST", "/setup/close_window"): _window_call(windows.close),
    ("POST", "/setup/upload"): _upload,
    ("POST", "/setup/change_wallpaper"): _unsupported("wallpaper"),
    ("POST", "/wallpaper"): _unsupported("wallpaper"),
    ("POST", "/start_recording"): _unsupported("recordings"),
    ("POST", "/end_recording"): _unsupported("recordings"),
    ("POST", "/file"): _file,
    ("POST", "/window_size"): _window_size,
    ("POST", "/screen_size"): _screen_size,
    ("POST", "/desktop_path"): lambda _: {"desktop_path": os.path.expanduser("~/Desktop")},
    ("POST", "/list_directory"): _list_directory,
}


class Handler(BaseHTTPRequestHandler):
    """Answers one request: bytes as they are, everything else as JSON."""

    timeout = _REQUEST_TIMEOUT_S
    body = b""

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY_BYTES:
            self._send(413, b"too large", "text/plain")
            return
        self.body = self.rfile.read(length)
        self._answer("POST")

    def json(self) -> dict[str, Any]:
        """The JSON object in the body."""
        try:
            value = json.loads(self.body)
        except ValueError as error:
            raise Problem(400, f"no JSON: {error}") from error
        if not isinstance(value, dict):
            raise Problem(400, "expected a JSON object")
        return value

    def form(self) -> dict[str, bytes]:
        """The fields of a form in the body, as bytes."""
        kind = self.headers.get("Content-Type", "")
        if not kind.startswith("multipart/form-data"):
            return {name: values[0].encode() for name, values in parse_qs(self.body.decode()).items()}
        boundary = kind.partition("boundary=")[2].strip('"').encode()
        fields = {}
        for part in (b"\r\n" + self.body).split(b"\r\n--" + boundary)[1:-1]:
            head, _, value = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
            name = head.partition(b'name="')[2].partition(b'"')[0].decode()
            fields[name] = value
        return fields

    def _answer(self, method: str) -> None:
        route = ROUTES.get((method, self.path.partition("?")[0]))
        try:
            if route is None:
                raise Problem(404, f"no such request: {method} {self.path}")
            result = route(self)
        except Problem as problem:
            self._send_json(
                problem.status, {"status": "error", "message": str(problem), "error": str(problem)}
            )
        except KeyError as error:
            self._send_json(400, {"status": "error", "message": f"missing: {error}", "error": str(error)})
        except Exception as error:  # the caller learns of it; the server goes on
            traceback.print_exc()
            self._send_json(500, {"status": "error", "message": repr(error), "error": repr(error)})
        else:
            if isinstance(result, bytes):
                image = result.startswith(b"\x89PNG")
                self._send(200, result, "image/png" if image else "application/octet-stream")
            else:
                self._send_json(200, result)

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it in here."""


Route = Callable[[Handler], Any]
