import subprocess
import sys

from verl_gui.envs.leftovers import owned_name, owner_is_dead, private_directory


def test_directories_of_dead_processes_are_removed_and_others_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from verl_gui.envs.leftovers import private_directory; print(private_directory('x').name)"
    )
    dead = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    living, foreign = private_directory("x"), tmp_path / "verl-gui-x-1-999999999-abc"
    foreign.mkdir()  # of another process namespace: it cannot be judged
    assert owner_is_dead(dead) and not owner_is_dead(living.name)
    assert not (tmp_path / dead).exists()
    private_directory("y")
    assert living.exists() and foreign.exists()


def test_names_of_others_are_never_judged_dead():
    for name in ("verl-gui-x", "something", "verl-gui-x-1-2-3", owned_name("x")):
        assert not owner_is_dead(name)
