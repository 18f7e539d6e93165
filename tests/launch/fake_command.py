"""Stands in for a training command. Arguments are done in order; run as a script, standard library only."""

import json
import os
import signal
import subprocess
import sys
import time


def daemon(ignore_sigterm: bool) -> None:
    """A grandchild in a session of its own that outlives its parent, as Ray's daemons do."""
    code = "import signal, time\n"
    if ignore_sigterm:
        code += "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code += "print('up', flush=True); time.sleep(600)"
    middle = (
        "import subprocess, sys\n"
        f"command = [sys.executable, '-c', {code!r}]\n"
        "p = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)\n"
        "p.stdout.readline()"
    )
    subprocess.run([sys.executable, "-c", middle], check=True, start_new_session=True)


def shared_memory() -> None:
    """A worker that is killed with a shared-memory file open."""
    code = (
        "import mmap, os, signal, time, uuid\n"
        "path = f'/dev/shm/verl-gui-test-{uuid.uuid4().hex}'\n"
        "file = open(path, 'w+b'); file.truncate(4096); held = mmap.mmap(file.fileno(), 4096)\n"
        "print('shm', path, flush=True); time.sleep(2); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)


def metrics(count: int, pause: float) -> None:
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "wb", buffering=0) as file:
        for step in range(1, count + 1):
            time.sleep(pause)
            data = {"timing_s/step": pause, "reward/score": step / count, "custom/thing": 7.0}
            file.write(json.dumps({"step": step, "data": data}).encode() + b"\n")


def main() -> None:
    for argument in sys.argv[1:]:
        name, _, value = argument.partition("=")
        if name == "daemon":
            daemon(ignore_sigterm=value == "stubborn")
        elif name == "shm":
            shared_memory()
        elif name == "metrics":
            metrics(int(value), 0.05)
        elif name == "print":
            print(value, flush=True)
        elif name == "sleep":
            print("sleeping", flush=True)
            time.sleep(float(value))
        elif name == "ignore":
            signal.signal(getattr(signal, value), signal.SIG_IGN)
        elif name == "on":  # on=SIGINT: say so and end with 3
            signal.signal(getattr(signal, value), lambda *_: (print("asked to end", flush=True), sys.exit(3)))
        elif name == "temp":
            import tempfile

            path = tempfile.mkdtemp(prefix="left-")
            print(f"temp {path}", flush=True)
        elif name == "environ":
            print(f"environ {os.environ.get(value)}", flush=True)
        elif name == "raise":
            raise RuntimeError(value)
        elif name == "die":
            os.kill(os.getpid(), getattr(signal, value))
        elif name == "exit":
            sys.exit(int(value))
        else:
            raise SystemExit(f"unknown argument {argument}")


if __name__ == "__main__":
    main()
