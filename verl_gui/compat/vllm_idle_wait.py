"""vLLM's engine and worker wait for each other in a busy loop, up to a second: of two cores that takes one.

Each side goes to sleep as soon as it finds nothing to read. The writer's notification, which vLLM sends with
every message in any case, wakes it; one that is lost (the reader had not subscribed yet) costs a tenth of a
second.
"""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VLLM, Bridge
from verl_gui.compat.vllm_cpu_weights import vllm_runs_on_cpu

LONGEST_SLEEP_MS = 100


def _sleep_at_once(shm_broadcast: ModuleType) -> None:
    condition = shm_broadcast.SpinCondition
    original_init, original_wait = condition.__init__, condition.wait

    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        self.busy_loop_s = 0.0

    @functools.wraps(original_wait)
    def wait(self: Any, timeout_ms: int | None = None) -> None:
        # The caller looks at the buffer again after each return, so a shorter wait changes nothing for it.
        original_wait(self, LONGEST_SLEEP_MS if timeout_ms is None else min(timeout_ms, LONGEST_SLEEP_MS))

    condition.__init__, condition.wait = __init__, wait


BRIDGE = Bridge(
    name="vllm-cpu-sleeps-when-idle",
    module="vllm.distributed.device_communicators.shm_broadcast",
    requires={"vllm": VLLM},
    twin="patches/vllm/0002-shm-broadcast-set-how-long-a-reader-spins.patch",
    apply=_sleep_at_once,
    wanted=vllm_runs_on_cpu,
)
