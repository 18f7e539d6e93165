"""In a process of its own: vLLM settles its platform and plugins once."""

import os
import subprocess
import sys

RECENT_READER = """
import time
import zmq
from verl_gui.compat import vllm_name
vllm_name.install()
{plugin}
from vllm.distributed.device_communicators.shm_broadcast import SpinCondition
context = zmq.Context()
address = "inproc://notifications"
writer = SpinCondition(False, context, address)
reader = SpinCondition(True, context, address)
for timeout in 50, None, 3_600_000:  # nobody notifies: without a limit of ours the last two would not end
    reader.record_read()
    started = time.monotonic()
    reader.wait(timeout)
    assert time.monotonic() - started > 0.04, f"did not sleep: {{timeout}}"
writer.notify()
assert reader.poller.poll(timeout=30_000), "never notified"
reader.wait()
assert not reader.poller.poll(timeout=0), "still notified"
"""


def run_python(code: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR"}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=110)


def test_a_reader_with_nothing_to_read_sleeps_for_a_bounded_time_and_hears_a_notification():
    plugin = "import verl_gui.platforms.vllm_cpu as plugin; plugin.register()"
    done = run_python(RECENT_READER.format(plugin=plugin))
    assert done.returncode == 0, done.stderr


def test_released_vllm_spins():
    done = run_python(RECENT_READER.format(plugin=""))
    assert done.returncode == 1 and "did not sleep: 50" in done.stderr
