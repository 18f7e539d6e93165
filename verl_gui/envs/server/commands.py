"""``verl-gui env``: serve and check environments, prepare what they need."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def add_commands(subparsers: Any) -> None:
    """Declare the commands."""
    env = subparsers.add_parser("env", help="serve and check environments")
    env.set_defaults(run=lambda _: env.print_help() or 2)
    commands = env.add_subparsers(title="commands", metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="serve environments of any backend over HTTP",
        description="Keep environments for trainers on other machines (gui.env.backend=remote).",
        epilog="example: verl-gui env serve desktop --num-envs 8 --host 0.0.0.0 --token-file token",
    )
    _add_backend(serve)
    serve.add_argument("--num-envs", type=int, default=4, help="environments at the same time (default 4)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, default=8600, help="port; 0 takes a free one (default 8600)")
    serve.add_argument(
        "--token-file", type=Path, help="file with the token; else the variable VERL_GUI_TOKEN, else none"
    )
    serve.add_argument("--lease-ttl", type=float, default=60.0, help="seconds of silence that end a lease")
    for name, default in (("start", 90.0), ("reset", 60.0), ("step", 30.0), ("evaluate", 60.0)):
        serve.add_argument(
            f"--{name}-timeout", type=float, default=default, help=f"longest {name} in seconds ({default:g})"
        )
    serve.set_defaults(run=_serve)

    check = commands.add_parser(
        "check",
        help="run an environment through its contract",
        description="Try a backend with a task: whether it keeps the contract of GuiEnv.",
        epilog="example: verl-gui env check desktop --task desktop",
    )
    _add_backend(check)
    check.add_argument("--task", required=True, help="source of tasks; the first one is used")
    check.add_argument("--moving", action="store_true", help="equal starts need not give equal pixels")
    check.set_defaults(run=_check)

    venv = commands.add_parser(
        "osworld-venv",
        help="make the environment that OSWorld's evaluators run in",
        description="Install desktop_env with what its evaluators need, apart from verl (1.5 GB, a minute or "
        "two), and print its interpreter for gui.env.options.osworld_python.",
    )
    venv.add_argument("--dir", type=Path, help="where; default: a directory in the user's cache")
    venv.set_defaults(run=_venv)


def _add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("backend", help="backend, or package.module:factory")
    parser.add_argument("--options", default="{}", help="the backend's options, as a JSON object")


def _serve(options: argparse.Namespace) -> int:
    import uvicorn

    from verl_gui.envs.remote.env import TOKEN_VARIABLE
    from verl_gui.envs.server.app import build_app
    from verl_gui.envs.server.settings import ServerSettings

    try:
        token = os.environ.get(TOKEN_VARIABLE)
        if options.token_file is not None:
            token = options.token_file.read_text().strip()
        settings = ServerSettings(
            options.backend,
            _object(options.options),
            capacity=options.num_envs,
            host=options.host,
            port=options.port,
            token=token or None,
            lease_ttl_s=options.lease_ttl,
            start_timeout_s=options.start_timeout,
            reset_timeout_s=options.reset_timeout,
            step_timeout_s=options.step_timeout,
            evaluate_timeout_s=options.evaluate_timeout,
        )
        listener = socket.create_server(
            (settings.host, settings.port), family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        )
    except (ValueError, OSError) as error:
        sys.stderr.write(f"verl-gui env serve: {error}\n")
        return 2
    host, port = listener.getsockname()[:2]
    sys.stdout.write(f"serving {settings.capacity} x {settings.backend} on http://{host}:{port}\n")
    sys.stdout.flush()
    config = uvicorn.Config(
        build_app(settings),
        log_level="warning",
        access_log=False,
        server_header=False,
        # Each lease has a call, a renewal and perhaps its end under way; the rest are newcomers.
        limit_concurrency=64 + 4 * settings.capacity,
        h11_max_incomplete_event_size=1 << 16,
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run(sockets=[listener])
    return 0


def _check(options: argparse.Namespace) -> int:
    from verl_gui.envs.base import EnvFailure
    from verl_gui.envs.checker import EnvCheckError, check_env
    from verl_gui.envs.worker import build_env
    from verl_gui.tasks.sources import expand_source

    try:
        instance = expand_source(options.task)[0]
        env = build_env(options.backend, _object(options.options))
        check_env(env, instance.task, instance.seed, same_pixels=not options.moving)
    except (EnvCheckError, EnvFailure, ValueError) as error:
        sys.stderr.write(f"verl-gui env check: {error}\n")
        return 1
    sys.stdout.write(f"{options.backend}: keeps the contract (task {instance.name})\n")
    return 0


def _venv(options: argparse.Namespace) -> int:
    from verl_gui.envs.osworld.venv import build_venv, default_directory

    try:
        python = build_venv(options.dir or default_directory())
    except RuntimeError as error:
        sys.stderr.write(f"verl-gui env osworld-venv: {error}\n")
        return 1
    sys.stdout.write(f"{python}\n")
    return 0


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"--options must be a JSON object, got {text}")
    return value
