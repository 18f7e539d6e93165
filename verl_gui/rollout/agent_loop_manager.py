"""verl's agent loop manager for trajectories whose screenshots travel encoded.

Chosen by ``actor_rollout_ref.rollout.agent.agent_loop_manager_class=`` :data:`COMPACT`; without that key
verl's own manager ships pixels, as it does for every other agent loop.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from verl_gui.models.encoded_images import encode
from verl_gui.models.screenshot import Screenshot

COMPACT = "verl_gui.rollout.agent_loop_manager.CompactAgentLoopManager"
"""Value of ``agent_loop_manager_class``."""

_Worker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class


def travels_encoded(rollout_config: Any) -> bool:
    """Whether a run's screenshots stay encoded (its ``actor_rollout_ref.rollout`` says so)."""
    return (rollout_config.get("agent") or {}).get("agent_loop_manager_class") == COMPACT


class CompactAgentLoopWorker(_Worker):
    """Stores the bytes of screenshots where verl's worker stores ``pixel_values``."""

    def _compute_multi_modal_inputs(self, output: Any, input_ids: Any) -> dict[str, Any]:
        """As verl's; for screenshots nothing is decoded and no processor is called."""
        images = (output.multi_modal_data or {}).get("images") or []
        if not images or not all(isinstance(image, Screenshot) for image in images):
            inputs: dict[str, Any] = super()._compute_multi_modal_inputs(output, input_ids)
            return inputs
        settings = output.mm_processor_kwargs
        if settings is None:
            settings = self._get_mm_processor_kwargs()
        return encode(
            [image.encoded for image in images], [image.size for image in images], self.processor, settings
        )


class CompactAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with workers of :class:`CompactAgentLoopWorker`, for all trainer modes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(CompactAgentLoopWorker)
