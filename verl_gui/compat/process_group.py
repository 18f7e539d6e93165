"""verl names the backends ``cpu:gloo,{device}:{backend}``; torch refuses a double key."""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VERL, Bridge, verl_runs_on_cpu


def _name_gloo_alone(distributed: ModuleType) -> None:
    """Give ``initialize_global_process_group_ray`` the backend "gloo" where the caller names none."""
    original = distributed.initialize_global_process_group_ray

    @functools.wraps(original)
    def initialize_global_process_group_ray(
        timeout_second: float | None = None, backend: str | None = None
    ) -> Any:
        return original(timeout_second=timeout_second, backend=backend or "gloo")

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray  # type: ignore[attr-defined]


BRIDGE = Bridge(
    name="process-group-backend",
    module="verl.utils.distributed",
    requires={"verl": VERL},
    twin="patches/verl/0001-distributed-name-gloo-once-on-cpu.patch",
    apply=_name_gloo_alone,
    wanted=verl_runs_on_cpu,
)
