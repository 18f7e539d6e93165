"""Which attention a model is trained with: flash attention where it runs, torch's own (sdpa) elsewhere.

Flash attention takes sequences packed end to end, so padding can be removed. verl's packed path for Qwen-VL
knows no other kernel, so with sdpa sequences are padded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)

FLASH, SDPA = "flash_attention_2", "sdpa"


def choose_attention(
    override_config: Mapping[str, Any], use_remove_padding: bool
) -> tuple[dict[str, Any], bool]:
    """Fill in what ``actor_rollout_ref.model`` leaves open.

    Args:
        override_config: verl's overrides of the model's configuration; its ``attn_implementation`` stays.
        use_remove_padding: what is configured; only ever switched off, with a word in the log.

    Returns:
        The overrides with an ``attn_implementation``, and whether padding is removed.
    """
    chosen = override_config.get("attn_implementation") or _best()
    if use_remove_padding and not str(chosen).startswith("flash_attention"):
        logger.warning(
            "actor_rollout_ref.model.use_remove_padding needs flash attention; with %s sequences are padded",
            chosen,
        )
        use_remove_padding = False
    return {**override_config, "attn_implementation": chosen}, use_remove_padding


def _best() -> str:
    import transformers.utils  # asks for the package and for a device it runs on

    return FLASH if transformers.utils.is_flash_attn_2_available() else SDPA
