"""Makes the estimators known to verl, by name."""

from __future__ import annotations

from types import ModuleType


def register_estimators(core_algos: ModuleType) -> None:
    """Add the estimators to verl's registry.

    Raises:
        ValueError: verl has another estimator of that name.
    """
    from verl_gui.advantage.estimators import ESTIMATORS

    for name, estimator in ESTIMATORS.items():
        core_algos.register_adv_est(name)(estimator)
