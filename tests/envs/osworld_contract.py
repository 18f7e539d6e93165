"""Runs in OSWorld's own Python: its unmodified client against a guest of ours. Prints one JSON object.

Arguments: host, port, width, height, task file. Only the provider, OSWorld's own plug for machines, is ours:
it names the guest that runs already.
"""

import json
import sys
import tempfile

from desktop_env import desktop_env
from desktop_env.controllers.python import PythonController
from desktop_env.controllers.setup import SetupController

HOST, PORT, WIDTH, HEIGHT, TASK = sys.argv[1:]


class Running:
    """Manager and provider of a machine that runs already."""

    def get_vm_path(self, **_):
        return "guest"

    def start_emulator(self, *_):
        pass

    def stop_emulator(self, *_):
        pass

    def get_ip_address(self, _):
        return f"{HOST}:{PORT}:9222:8006:8080"


def main():
    found = {}
    controller = PythonController(HOST, int(PORT))
    controller.retry_interval = 0
    found["png"] = controller.get_screenshot()[:8] == b"\x89PNG\r\n\x1a\n"
    found["platform"] = controller.get_vm_platform()
    found["screen"] = controller.get_vm_screen_size()
    found["desktop"] = controller.get_vm_desktop_path()
    found["python"] = controller.run_python_script("print(6 * 7)")["output"]
    found["bash"] = controller.run_bash_script("echo $((6 * 7)); exit 3")["returncode"]
    setup = SetupController(HOST, int(PORT), cache_dir=tempfile.mkdtemp(), client_password="password")
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(range(256)))
        file.flush()
        upload = {"local_path": file.name, "path": "~/up/x.bin"}
        steps = [
            {"type": "upload_file", "parameters": {"files": [upload]}},
            {"type": "launch", "parameters": {"command": ["xterm", "-T", "contract"]}},
            {"type": "sleep", "parameters": {"seconds": 1}},
            {"type": "activate_window", "parameters": {"window_name": "contract"}},
            {"type": "close_window", "parameters": {"window_name": "contract"}},
        ]
        found["setup"] = setup.setup(steps)
    found["file"] = controller.get_file("/home/user/up/x.bin") == bytes(range(256))
    found["tree"] = controller.get_vm_directory_tree("/home/user/up")

    desktop_env.create_vm_manager_and_provider = lambda *_, **__: (Running(), Running())
    env = desktop_env.DesktopEnv(
        provider_name="docker",
        action_space="pyautogui",
        screen_size=(int(WIDTH), int(HEIGHT)),
        require_a11y_tree=False,
        cache_dir=tempfile.mkdtemp(),
    )
    with open(TASK) as file:
        observation = env.reset(json.load(file))
    found["instruction"] = observation["instruction"]
    found["before"] = env.evaluate()
    env.setup_controller.setup([{"type": "launch", "parameters": {"command": ["xterm"]}}])
    env.step("WAIT", pause=2)
    name = "~/Desktop/todo_list_Jan_"
    observation, *_ = env.step(f"pyautogui.write('mv {name}1 {name}2\\n')", pause=1)
    found["step"] = observation["screenshot"][:4] == b"\x89PNG"
    found["after"] = env.evaluate()
    env.step("FAIL", pause=0)
    found["after_fail"] = env.evaluate()
    env.close()
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
