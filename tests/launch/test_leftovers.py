import mmap
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from verl_gui.launch import leftovers

HOLD = """
import mmap, sys, time
with open(sys.argv[1], "r+b") as file:
    held = mmap.mmap(file.fileno(), 0)
print(1, flush=True)
time.sleep(60)
"""


def test_scratch_leaves_room_for_ray_sockets(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 30)))
    scratch = leftovers.make_scratch()
    try:
        session = "ray/session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"
        assert len(os.fsencode(scratch / session)) <= 107
    finally:
        leftovers.remove_scratch(scratch)
    assert not scratch.exists()


def test_scratch_honours_a_short_tmpdir(monkeypatch, tmp_path_factory):
    monkeypatch.setattr("tempfile.tempdir", "/var/tmp")
    scratch = leftovers.make_scratch()
    assert scratch.parent == Path("/var/tmp")
    leftovers.remove_scratch(scratch)


def test_ray_logs_are_kept(tmp_path):
    logs = tmp_path / "scratch/ray/session_2026-01-01_00-00-00_000000_7/logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text("here")
    (logs.parent.parent / "session_latest").symlink_to(logs.parent)
    leftovers.keep_ray_logs(tmp_path / "scratch", tmp_path / "ray-logs")
    assert (tmp_path / "ray-logs/raylet.out").read_text() == "here"


def _hold(path: str) -> subprocess.Popen:
    """A process that has ``path`` in its memory."""
    Path(path).write_bytes(b"x" * mmap.PAGESIZE)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE)
    holder.stdout.readline()
    return holder


def test_shared_memory_is_removed_only_when_it_is_ours_and_unused():
    kinds = ("before", "dead", "alive", "foreign")
    names = {kind: f"/dev/shm/verl-gui-test-{kind}-{uuid.uuid4().hex}" for kind in kinds}
    holders = {"before": _hold(names["before"])}
    try:
        watch = leftovers.SharedMemoryWatch()
        holders |= {kind: _hold(names[kind]) for kind in kinds[1:]}
        ours = [holders[kind].pid for kind in ("before", "dead", "alive")]
        watch.look(lambda: ours)
        assert watch.ours == {names["dead"], names["alive"]}
        for kind in ("before", "dead", "foreign"):
            holders[kind].kill()
            holders[kind].wait()
        for _ in range(10):
            watch.look(lambda: ours)
        assert watch.remove() == [names["dead"]]
        assert [Path(names[kind]).exists() for kind in kinds] == [True, False, True, True]
    finally:
        for holder in holders.values():
            holder.kill()
            holder.wait()
        for path in names.values():
            Path(path).unlink(missing_ok=True)


def test_processes_are_not_asked_for_when_nothing_is_new(monkeypatch):
    monkeypatch.setattr(leftovers, "_names", lambda: {"/dev/shm/old"})
    leftovers.SharedMemoryWatch().look(lambda: pytest.fail("asked"))


def test_the_scratch_of_a_killed_run_is_removed_by_the_next(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(leftovers, "_SOCKET_PATH_LIMIT", 1000)
    code = (
        "from verl_gui.launch import leftovers; leftovers._SOCKET_PATH_LIMIT = 1000; "
        "print(leftovers.make_scratch())"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    killed = Path(done.stdout.strip())
    assert killed.is_dir()
    living = leftovers.make_scratch()
    assert not killed.exists() and living.exists()
    (tmp_path / "vg-foreign").mkdir()
    (tmp_path / "vg-foreign" / leftovers._OWNERS).write_text("4026539999 1 1\n")  # another container's
    (tmp_path / "vg-fresh").mkdir()
    (tmp_path / "vg-file").touch()
    leftovers.make_scratch()
    assert {"vg-foreign", "vg-fresh", "vg-file", living.name} <= {path.name for path in tmp_path.iterdir()}


def test_only_locks_of_our_dead_x_servers_are_removed(tmp_path):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    sockets = tmp_path / ".X11-unix"
    sockets.mkdir()
    for number, content in (
        (1, f"{dead.pid:>10}\n"),
        (2, f"{os.getpid():>10}\n"),
        (3, "garbage"),
        (4, "         1\n"),
    ):
        (tmp_path / f".X{number}-lock").write_text(content)
        (sockets / f"X{number}").touch()
    assert leftovers.remove_x_locks({dead.pid, os.getpid()}, tmp_path) == [str(tmp_path / ".X1-lock")]
    assert sorted(path.name for path in sockets.iterdir()) == ["X2", "X3", "X4"]
