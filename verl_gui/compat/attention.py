"""verl takes flash attention for granted: a model is loaded with it unless the configuration says otherwise.

Where the package or a GPU is missing the worker fails while it loads the model, and with another attention
alone it fails at the first batch, because removing the padding needs flash attention too. The choice is made
in :mod:`verl_gui.models.attention`.
"""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VERL, Bridge


def _choose(model: ModuleType) -> None:
    config = model.HFModelConfig
    original = config.__post_init__

    @functools.wraps(original)
    def __post_init__(self: Any) -> None:
        from verl_gui.models.attention import choose_attention

        override_config, use_remove_padding = choose_attention(self.override_config, self.use_remove_padding)
        # The configuration is frozen for its users, not yet for its own initialisation.
        object.__setattr__(self, "override_config", override_config)
        object.__setattr__(self, "use_remove_padding", use_remove_padding)
        original(self)

    config.__post_init__ = __post_init__


BRIDGE = Bridge(
    name="attention",
    module="verl.workers.config.model",
    requires={"verl": VERL},
    twin="patches/verl/0012-model-config-choose-the-attention.patch",
    apply=_choose,
)
