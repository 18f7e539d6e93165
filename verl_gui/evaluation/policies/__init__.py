"""Who answers in an evaluation: a checkpoint, an endpoint, a script or chance."""

from verl_gui.evaluation.policies.base import Answer, Policy, PolicyFailure, PolicySetupError, View
from verl_gui.evaluation.policies.spec import POLICY_HELP, PolicyOptions, open_policy

__all__ = [
    "POLICY_HELP",
    "Answer",
    "Policy",
    "PolicyFailure",
    "PolicyOptions",
    "PolicySetupError",
    "View",
    "open_policy",
]
