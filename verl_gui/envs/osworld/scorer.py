"""Runs in OSWorld's own Python: scores a guest with the unmodified ``DesktopEnv.evaluate``.

Reads one JSON request a line from descriptor FD and answers with one line each. Not part of this project's
process: ``desktop_env`` needs packages that cannot live beside verl. Started by :mod:`.scoring`.
"""

import json
import os
import sys
import traceback
from typing import Any


def main(descriptor: int) -> None:
    """Answer requests until the other end closes."""
    with os.fdopen(descriptor, "r+b", buffering=0) as raw:
        lines = os.fdopen(os.dup(descriptor), "rb")
        from desktop_env.controllers.python import PythonController
        from desktop_env.controllers.setup import SetupController
        from desktop_env.desktop_env import DesktopEnv

        raw.write(b'{"ready": true}\n')
        for line in lines:
            try:
                score = _score(json.loads(line), DesktopEnv, PythonController, SetupController)
                answer: dict[str, Any] = {"score": score}
            except Exception as error:  # told to the caller
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
            raw.write(json.dumps(answer).encode() + b"\n")


def _score(
    request: dict[str, Any], desktop_env: Any, python_controller: Any, setup_controller: Any
) -> float | None:
    """A ``DesktopEnv`` around a guest that runs already, as its own ``_start_emulator`` would leave it."""
    env = desktop_env.__new__(desktop_env)
    env.vm_ip, env.server_port = request["host"], request["port"]
    env.chromium_port, env.vlc_port = request["chromium_port"], request["vlc_port"]
    env.screen_width, env.screen_height = request["screen"]
    env.cache_dir_base = request["cache"]
    env.client_password = request["password"]
    env.enable_proxy = env.current_use_proxy = env.is_environment_used = False
    env.os_type, env.provider_name = "Ubuntu", "docker"
    env.controller = python_controller(vm_ip=env.vm_ip, server_port=env.server_port)
    env.setup_controller = setup_controller(
        vm_ip=env.vm_ip,
        server_port=env.server_port,
        chromium_port=env.chromium_port,
        vlc_port=env.vlc_port,
        cache_dir=env.cache_dir_base,
        client_password=env.client_password,
        screen_width=env.screen_width,
        screen_height=env.screen_height,
    )
    env.action_history = [request["last_action"]]
    env._set_task_info(request["task"])
    env.setup_controller.reset_cache_dir(env.cache_dir)
    if request["only_check"]:
        return None
    return float(env.evaluate())


if __name__ == "__main__":
    main(int(sys.argv[1]))
