"""verl binds transformers' ``get_rope_index`` to its processor: a loop over tokens that breaks easily.

It takes 9 ms for an episode of fifteen screenshots, raises ``StopIteration`` or a shape error when the policy
wrote an image placeholder or a picture was cut, and is not told how far apart the frames of a video are. Ours
(:mod:`verl_gui.models.rope_index`) gives the same numbers wherever that one gives any.
"""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import TRANSFORMERS, VERL, Bridge
from verl_gui.compat._imports import replace_imported


def _bind_our_positions(tokenizer: ModuleType) -> None:
    original = tokenizer.hf_processor

    @functools.wraps(original)
    def hf_processor(*args: Any, **kwargs: Any) -> Any:
        from verl_gui.models.processor import PROCESSORS, bind_rope_index

        processor = original(*args, **kwargs)
        if type(processor).__name__ in PROCESSORS:
            bind_rope_index(processor)
        return processor

    replace_imported(tokenizer, "hf_processor", hf_processor)


BRIDGE = Bridge(
    name="processor-positions",
    module="verl.utils.tokenizer.tokenizer",
    requires={"verl": VERL, "transformers": TRANSFORMERS},
    twin="patches/verl/0009-processor-positions-without-a-loop-over-tokens.patch",
    apply=_bind_our_positions,
)
