import os
import re
import sys
from pathlib import Path

import psutil
import pytest
import torch
import verl
from verl.plugin.platform import PlatformBase, PlatformRegistry, platform_manager

from verl_gui.platforms import cpu
from verl_gui.platforms.cpu import PlatformCPU, device_module

VERL_SOURCES = Path(verl.__file__).parent


class AvailablePlatform(PlatformBase):
    """Some accelerator that is there."""

    def is_platform_available(self, use_smi_check=False):
        return True


AvailablePlatform.__abstractmethods__ = frozenset()  # only asked whether it is there


class BrokenPlatform(AvailablePlatform):
    def is_platform_available(self, use_smi_check=False):
        raise RuntimeError("driver trouble")


@pytest.fixture
def bare_host(monkeypatch):
    """A host without accelerators, with no platform registered but the CPU's, outside any Ray cluster."""
    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    monkeypatch.setattr(PlatformRegistry, "_platforms", {"cpu": PlatformCPU})
    monkeypatch.setattr(platform_manager, "_current_platform", None)
    monkeypatch.setattr(cpu, "_ACCELERATOR_NODES", ())
    monkeypatch.setitem(sys.modules, "ray", None)
    return monkeypatch


def test_bare_host_gets_the_cpu(bare_host):
    assert platform_manager._detect_platform_name() == "cpu"
    assert isinstance(platform_manager.get_platform(), PlatformCPU)


def test_environment_wins(bare_host):
    PlatformRegistry._platforms["nvidia"] = AvailablePlatform
    bare_host.setenv("VERL_PLATFORM", "cpu")
    assert platform_manager._detect_platform_name() == "cpu"
    bare_host.setenv("VERL_PLATFORM", "nvidia")
    assert platform_manager._detect_platform_name() == "nvidia"


@pytest.mark.parametrize("registered_first", [True, False])
def test_any_other_available_platform_wins(bare_host, registered_first):
    """Also one that another plugin registers later: verl takes the first that says it is available."""
    platforms = PlatformRegistry._platforms
    platforms.clear()
    names = ("acme", "cpu") if registered_first else ("cpu", "acme")
    platforms.update({name: AvailablePlatform if name == "acme" else PlatformCPU for name in names})
    assert platform_manager._detect_platform_name() == "acme"


def test_platform_that_cannot_be_asked_does_not_count(bare_host):
    PlatformRegistry._platforms["acme"] = BrokenPlatform
    assert platform_manager._detect_platform_name() == "cpu"


def test_cpu_actor_of_a_gpu_host_is_no_cpu_host(bare_host, tmp_path):
    (tmp_path / "nvidia0").touch()
    bare_host.setattr(cpu, "_ACCELERATOR_NODES", (f"{tmp_path}/nvidia[0-9]*",))
    assert platform_manager._detect_platform_name() == "nvidia"  # verl's own answer, as without the plugin


@pytest.mark.parametrize(
    ("resources", "expected"),
    [({"CPU": 8.0, "GPU": 8.0, "accelerator_type:H200": 1.0}, "nvidia"), ({"CPU": 2.0, "GPU": 1.0}, "cpu")],
)
def test_head_node_of_a_gpu_cluster_is_no_cpu_host(bare_host, resources, expected):
    ray = type("ray", (), {"is_initialized": lambda: True, "cluster_resources": lambda: resources})
    bare_host.setitem(sys.modules, "ray", ray)
    assert platform_manager._detect_platform_name() == expected


def test_registering_chooses_nothing(bare_host):
    PlatformRegistry._platforms.clear()
    cpu.register_platform()
    assert PlatformRegistry.registered_names() == ("cpu",) and platform_manager._current_platform is None


def test_device_module_has_every_call_verl_makes_on_it():
    """verl writes ``get_torch_device().name``; Megatron needs an accelerator and is left out."""
    called = set()
    for path in VERL_SOURCES.rglob("*.py"):
        if "megatron" not in str(path) and "mcore" not in str(path):
            called |= set(re.findall(r"get_torch_device\(\)\.(\w+)", path.read_text()))
    assert {"empty_cache", "memory_allocated", "get_rng_state"} <= called
    assert [name for name in sorted(called) if not hasattr(device_module, name)] == []


def test_tensors_move_to_the_current_device():
    moved = torch.ones(2).to(PlatformCPU().current_device())
    assert moved.device.type == "cpu"
    assert torch.zeros(1, device=device_module.current_device()).device.type == "cpu"


def test_random_state_is_restored():
    state = device_module.get_rng_state()
    first = torch.rand(5)
    device_module.set_rng_state(state)
    assert torch.equal(torch.rand(5), first)
    PlatformCPU().manual_seed(7)
    seeded = torch.rand(5)
    PlatformCPU().manual_seed_all(7)
    assert torch.equal(torch.rand(5), seeded)


def test_memory_figures_follow_the_process():
    device_module.reset_peak_memory_stats()
    before = device_module.memory_allocated()
    block = torch.ones(64 << 20, dtype=torch.uint8)
    with_block = device_module.memory_allocated()
    del block
    assert with_block - before > 48 << 20
    assert device_module.max_memory_allocated() - before > 48 << 20
    device_module.reset_peak_memory_stats()
    assert device_module.max_memory_allocated() <= with_block


@pytest.mark.parametrize(
    ("limit", "used", "expected_total"),
    [("1073741824", "268435456", 1 << 30), ("max", "268435456", None), (str(1 << 62), "0", None)],
)
def test_memory_of_a_container_is_its_limit(tmp_path, monkeypatch, limit, used, expected_total):
    (tmp_path / "limit").write_text(limit + "\n")
    (tmp_path / "used").write_text(used + "\n")
    monkeypatch.setattr(cpu, "_CGROUP_LIMITS", (str(tmp_path / "missing"), str(tmp_path / "limit")))
    monkeypatch.setattr(cpu, "_CGROUP_USAGES", (str(tmp_path / "used"),))
    available, total = device_module.mem_get_info()
    host = psutil.virtual_memory()
    assert total == (expected_total or host.total)
    assert 0 < available <= total
    if expected_total:
        assert available <= (1 << 30) - (1 << 28)


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5"])
def test_thread_count_must_be_a_positive_integer(monkeypatch, text):
    monkeypatch.setenv(cpu.THREADS_VARIABLE, text)
    with pytest.raises(ValueError, match=cpu.THREADS_VARIABLE):
        cpu.register_platform()


def test_thread_count_reaches_torch_and_child_processes(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(cpu.THREADS_VARIABLE, "3")
    try:
        cpu.register_platform()
        assert torch.get_num_threads() == 3 and os.environ["OMP_NUM_THREADS"] == "3"
    finally:
        torch.set_num_threads(before)


def test_without_the_variable_threads_are_left_alone(monkeypatch):
    monkeypatch.delenv(cpu.THREADS_VARIABLE, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    cpu.register_platform()
    assert torch.get_num_threads() == before and os.environ["OMP_NUM_THREADS"] == "1"
