"""The CPU as a verl platform.

verl chooses a platform once per process: ``VERL_PLATFORM`` if it is set, else the first registered platform
that says it is available. :class:`PlatformCPU` says so only where no accelerator exists: not in this
process, not on this host (a CPU-only Ray actor of a GPU node can't see the GPUs of its host) and not in the
Ray cluster (a head node without GPUs). Set ``VERL_PLATFORM=nvidia`` (or ``cpu``) to decide it yourself.

``VERL_GUI_NUM_THREADS`` sets torch's threads in every verl process; Ray sets ``OMP_NUM_THREADS=1`` in its
workers.
"""

import glob
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry

logger = logging.getLogger(__name__)

NAME = "cpu"
THREADS_VARIABLE = "VERL_GUI_NUM_THREADS"

# Nodes that the drivers of NVIDIA, AMD, WSL and Ascend devices make, readable whatever a process may see of
# them.
_ACCELERATOR_NODES = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/dev/davinci[0-9]*")
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_USAGES = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")


class PlatformCPU(PlatformBase):
    """verl's device interface on the CPU: gloo, no IPC, memory figures of the process and the host."""

    device_name = NAME
    vendor_name = NAME

    @property
    def device_module(self) -> ModuleType:
        return device_module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        """Whether no accelerator exists: other platforms are unavailable, host and cluster have none."""
        return not (
            _other_platform_is_available(use_smi_check)
            or _host_has_accelerator()
            or _cluster_has_accelerator()
        )

    def current_device(self) -> torch.device:
        """The device itself: verl passes it to ``tensor.to()``, where index 0 would mean an accelerator."""
        return torch.device(NAME)

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one CPU device: nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """CPU work is done when its call returns."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """The CPU allocator has no settings."""

    def empty_cache(self) -> None:
        """The CPU allocator keeps no cache."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # vLLM's CPU backend reads no such variable; a name of its own keeps CUDA_VISIBLE_DEVICES untouched.
        return "VERL_GUI_CPU_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """Ray's logical GPU (``ray_kwargs.ray_init.num_gpus``): verl's resource pools count nothing else."""
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        """No device memory to share: weights travel through POSIX shared memory."""
        return False

    def cudart(self) -> Any:
        return None


class _CpuDevice(ModuleType):
    """``torch.cpu`` with the calls that verl makes on ``torch.cuda``. All sizes are bytes."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> torch.device:
        return torch.device(NAME)

    def get_device_name(self, device: Any = None) -> str:
        return NAME

    def empty_cache(self) -> None: ...

    def ipc_collect(self) -> None: ...

    def set_per_process_memory_fraction(self, fraction: float, device: Any = None) -> None: ...

    def memory_allocated(self, device: Any = None) -> int:
        """Resident set of this process."""
        return int(psutil.Process().memory_info().rss)

    def memory_reserved(self, device: Any = None) -> int:
        return self.memory_allocated(device)

    def max_memory_allocated(self, device: Any = None) -> int:
        """Largest resident set of this process since its start or the last reset (Linux VmHWM)."""
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        raise RuntimeError(
            "/proc/self/status has no VmHWM: the peak memory of a process is known on Linux only"
        )

    def max_memory_reserved(self, device: Any = None) -> int:
        return self.max_memory_allocated(device)

    def reset_peak_memory_stats(self, device: Any = None) -> None:
        with open("/proc/self/clear_refs", "w") as clear_refs:
            clear_refs.write("5")  # resets VmHWM, see proc_pid_clear_refs(5)

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        """(available, total) memory of the host, or of this container where its limit is lower."""
        host = psutil.virtual_memory()
        limit, used = _read_first_number(_CGROUP_LIMITS), _read_first_number(_CGROUP_USAGES)
        if limit is None or used is None or limit >= host.total:
            return int(host.available), int(host.total)
        return min(int(host.available), max(limit - used, 0)), limit

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(new_state)


device_module = _CpuDevice(
    "verl_gui.platforms.cpu.device_module", "torch.cpu with the interface of torch.cuda"
)


def register_platform(platform_manager: ModuleType | None = None) -> None:
    """Register :class:`PlatformCPU` with verl and apply ``VERL_GUI_NUM_THREADS``. Chooses nothing."""
    PlatformRegistry.register(platform=NAME)(PlatformCPU)
    _set_threads()


def _set_threads() -> None:
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text:
        return
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{THREADS_VARIABLE} must be a positive integer, not {text!r}")
    # For the processes that this one starts (vLLM's); torch has already read the variable in this one.
    os.environ["OMP_NUM_THREADS"] = text
    torch.set_num_threads(int(text))


def _other_platform_is_available(use_smi_check: bool) -> bool:
    for name in PlatformRegistry.registered_names():
        platform = PlatformRegistry.get(name)
        if platform is None or issubclass(platform, PlatformCPU):
            continue
        try:
            if platform().is_platform_available(use_smi_check=use_smi_check):
                return True
        except Exception as error:  # what verl itself does when a platform can't even be asked
            logger.debug("platform %s could not be asked: %s", name, error)
    return False


def _host_has_accelerator() -> bool:
    return any(glob.glob(pattern) for pattern in _ACCELERATOR_NODES)


def _cluster_has_accelerator() -> bool:
    """Whether the Ray cluster of this process has a real accelerator (a logical ``num_gpus`` has no type)."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return any(resource.startswith("accelerator_type:") for resource in ray.cluster_resources())


def _read_first_number(paths: tuple[str, ...]) -> int | None:
    for path in paths:
        try:
            with open(path) as file:
                text = file.read().strip()
        except OSError:
            continue
        return int(text) if text.isdigit() else None  # "max": no limit
    return None
