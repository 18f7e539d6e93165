"""The launcher against small fake commands: every ending, and that nothing is left after it."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUPERVISOR = "verl_gui.cli run"
GUARD = "verl_gui.launch.guard"


def test_a_run_that_ends_well_shows_its_steps_and_its_report(launched):
    status, said = launched.run("metrics=4", options=("--total-steps", "4"))
    assert status == 0
    assert "step 4/4: train 1" in said
    assert (launched.directory / "report.html").is_file()
    assert str(launched.directory / "report.html") in said
    facts = json.loads((launched.directory / "run.json").read_text())
    assert facts["exit_status"] == 0 and facts["ended"] >= facts["started"]
    assert facts["command"][2:] == ["metrics=4"]


def test_metrics_asked_for_are_shown(launched):
    _, said = launched.run("metrics=1", options=("--metric", "custom/thing"))
    assert "custom/thing 7" in said


def test_phases_are_shown_and_verbose_copies_the_log(launched):
    _, said = launched.run(
        "print=ray init kwargs: {}", "sleep=0.5", "print=dataset len: 8", "sleep=0.5", options=("--verbose",)
    )
    assert "starting Ray …" in said and "loading tasks …" in said
    assert "dataset len: 8" in said


@pytest.mark.parametrize(
    "kind, ending, status",
    [("stubborn", "exit=0", 0), ("polite", "exit=5", 5), ("polite", "die=SIGKILL", 137)],
)
def test_daemons_do_not_outlive_the_command(launched, kind, ending, status):
    assert launched.run(f"daemon={kind}", "daemon=polite", ending)[0] == status
    assert launched.alive() == {}
    assert "ending what the command left running" in launched.log()


def test_a_crash_names_the_error_and_the_log(launched):
    status, said = launched.run("daemon=polite", "raise=no such model")
    assert status == 1
    assert "RuntimeError: no such model" in said
    assert "fake_command.py:" in said and str(launched.directory / "train.log") in said
    assert launched.alive() == {}


def test_a_command_that_cannot_be_started_is_explained(launched, tmp_path):
    command = launched.command()
    command[command.index("--") + 1 :] = [str(tmp_path / "no-such-program")]
    done = subprocess.run(command, env=launched.environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 127
    assert "no-such-program" in done.stderr and "No such file" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_reach_the_command_which_may_end_by_itself(launched, number):
    process = launched.start("daemon=stubborn", f"on={number.name}", "sleep=60")
    launched.wait_for_log("sleeping")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "asked to end" in launched.log()
    assert "stopped" in said and "failed" not in said
    assert launched.alive() == {}


def test_a_terminal_that_closes_ends_the_run(launched):
    process = launched.start("sleep=60")
    launched.wait_for_log("sleeping")
    process.send_signal(signal.SIGHUP)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert launched.alive() == {}


def test_a_command_that_will_not_end_is_killed_after_the_grace(launched):
    process = launched.start(
        "ignore=SIGINT", "ignore=SIGTERM", "daemon=polite", "sleep=60", options=("--grace", "1")
    )
    launched.wait_for_log("sleeping")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert 1 <= time.monotonic() - began < 40
    assert launched.alive() == {}


def test_a_second_ctrl_c_does_not_wait_for_the_grace(launched):
    process = launched.start("ignore=SIGINT", "daemon=polite", "sleep=60", options=("--grace", "50"))
    launched.wait_for_log("sleeping")
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert time.monotonic() - began < 40
    assert launched.alive() == {}


def test_a_killed_supervisor_takes_everything_with_it(launched):
    process = launched.start("temp", "daemon=polite", "sleep=60")
    launched.wait_for_log("sleeping")
    process.kill()
    process.communicate(timeout=30)
    launched.wait_until(lambda: not launched.alive(), "the guard to end everything")
    assert not _temporary_directory(launched).exists()


def test_a_killed_guard_takes_everything_with_it(launched):
    process = launched.start("temp", "daemon=stubborn", "sleep=60")
    launched.wait_for_log("sleeping")
    os.kill(launched.find(GUARD, without=SUPERVISOR), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 137
    assert launched.alive() == {}
    assert not _temporary_directory(launched).parent.exists()


def test_shared_memory_of_a_killed_worker_is_removed(launched):
    status, _ = launched.run("shm", "exit=1")
    path = Path(re.search(r"^shm (.+)$", launched.log(), re.MULTILINE)[1])
    assert status == 1 and not path.exists()


def test_temporary_files_are_removed_and_metrics_go_to_the_run(launched):
    launched.run("temp", "environ=VERL_FILE_LOGGER_PATH", "environ=VERL_GUI_RUN_DIR")
    scratch = _temporary_directory(launched)
    assert not scratch.exists() and not scratch.parent.exists()
    assert f"environ {launched.directory / 'metrics.jsonl'}" in launched.log()
    assert f"environ {launched.directory}\n" in launched.log()


def test_an_earlier_run_in_the_directory_is_kept(launched):
    launched.run("metrics=1", "print=first run")
    launched.run("metrics=2")
    launched.run("metrics=3")
    assert "first run" in (launched.directory / "train-1.log").read_text()
    sizes = [len((launched.directory / name).read_text().splitlines()) for name in
             ("metrics-1.jsonl", "metrics-2.jsonl", "metrics.jsonl")]  # fmt: skip
    assert sizes == [1, 2, 3]


def test_a_terminal_gets_a_bar(launched):
    ours, theirs = pty.openpty()
    process = launched.start(
        "print=ray init kwargs", "metrics=5", stderr=theirs, options=("--total-steps", "5")
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        shown += chunk
    os.close(ours)
    assert process.wait(30) == 0
    text = shown.decode()
    assert re.search(r"5/5, train 1", text)
    assert "starting Python" in text and text.count("\r") > 5


def test_running_in_process_leaves_other_children_alone(tmp_path):
    from verl_gui.launch.supervisor import run

    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    handler = signal.getsignal(signal.SIGINT)
    try:
        assert run([sys.executable, "-c", "raise SystemExit(4)"], tmp_path / "run") == 4
        assert bystander.poll() is None
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        bystander.kill()
        bystander.wait()


def test_an_empty_command_is_refused(tmp_path):
    from verl_gui.launch.supervisor import run

    with pytest.raises(ValueError, match="--"):
        run([], tmp_path)


def _temporary_directory(launched) -> Path:
    return Path(re.search(r"^temp (.+)$", launched.log(), re.MULTILINE)[1])
