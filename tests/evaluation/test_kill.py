"""An evaluation that is killed loses nothing but the runs it was in the middle of."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from in_process import instances

from verl_gui.evaluation.runs import open_slots, read_runs

SCRIPT = """
import asyncio, io, sys
from in_process import Leases, SayClick, instances
from verl_gui.evaluation.engine import RunSettings, evaluate
from verl_gui.evaluation.progress import Progress
from verl_gui.evaluation.runs import RunLog

out, pause = sys.argv[1], float(sys.argv[2])
log = RunLog(out, {"policy": "click"})
tasks = instances(*(f"t{i}" for i in range(10)))
asyncio.run(evaluate(tasks, SayClick(lambda: asyncio.sleep(pause)), Leases(), log, RunSettings(k=4),
                     concurrency=3, progress=Progress("test", io.StringIO())))
"""


def start(out, pause):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    return subprocess.Popen([sys.executable, "-c", SCRIPT, str(out), str(pause)], env=environment)


def test_killed_and_resumed(tmp_path):
    process = start(tmp_path, 0.05)
    file = tmp_path / "runs.jsonl"
    deadline = time.monotonic() + 60
    while len(read_runs(file)[0]) < 8:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before, _ = read_runs(file)
    with open(file, "ab") as torn:  # as if the kill had come in the middle of a line
        torn.write(b'{"instance":"t9","task_id"')

    assert start(tmp_path, 0.0).wait(60) == 0
    after, _ = read_runs(file)
    assert after[: len(before)] == before and 8 <= len(before) < 40
    assert len({(run.instance, run.slot) for run in after}) == len(after) == 40
    tasks = instances(*(f"t{i}" for i in range(10)))
    assert open_slots(tasks, after, k=4, retries=0) == []
