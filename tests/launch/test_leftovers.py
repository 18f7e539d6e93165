import mmap
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

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


def test_shared_memory_is_removed_only_when_ours_young_and_unused():
    names = {kind: f"/dev/shm/verl-gui-test-{kind}-{uuid.uuid4().hex}" for kind in ("ours", "used", "old")}
    for path in names.values():
        Path(path).write_bytes(b"x" * mmap.PAGESIZE)
    holders = {
        kind: subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE)
        for kind, path in names.items()
    }
    try:
        for holder in holders.values():
            holder.stdout.readline()
        mapped = leftovers.shared_memory_of(holder.pid for holder in holders.values())
        assert mapped == set(names.values())
        for kind in ("ours", "old"):
            holders[kind].kill()
            holders[kind].wait()
        assert leftovers.remove_shared_memory({names["old"]}, younger_than=time.time() + 60) == []
        assert leftovers.remove_shared_memory(mapped - {names["old"]}, younger_than=time.time() - 60) == [
            names["ours"]
        ]
        assert [Path(names[kind]).exists() for kind in ("ours", "used", "old")] == [False, True, True]
    finally:
        for holder in holders.values():
            holder.kill()
            holder.wait()
        for path in names.values():
            Path(path).unlink(missing_ok=True)


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
