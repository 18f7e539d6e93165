"""verl's dummy vision pass for a text-only Qwen2-VL / 2.5-VL micro-batch crashes with transformers 5.

The pass keeps the vision tower in the graph, so that every FSDP rank runs the same collectives. It averages
what ``model.visual`` returns, which used to be a tensor and is a ``BaseModelOutputWithPooling`` now. verl's
own ``unpack_visual_output`` knows both; the dummy pass is the one caller that forgot it.
"""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import TRANSFORMERS, VERL, Bridge

_PATCHES_PER_SIDE = 4


def _unpack_the_dummy_pass(qwen2_vl: ModuleType) -> None:
    import torch

    original = qwen2_vl._get_input_embeds

    @functools.wraps(original)
    def _get_input_embeds(
        model: Any,
        input_ids: Any,
        attention_mask: Any = None,
        pixel_values: Any = None,
        pixel_values_videos: Any = None,
        image_grid_thw: Any = None,
        video_grid_thw: Any = None,
    ) -> tuple[Any, Any]:
        if pixel_values is not None or pixel_values_videos is not None:
            return original(
                model,
                input_ids,
                attention_mask,
                pixel_values,
                pixel_values_videos,
                image_grid_thw,
                video_grid_thw,
            )
        inputs_embeds = model.get_input_embeddings()(input_ids)
        vision = model.config.vision_config
        patch_dim = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        side = _PATCHES_PER_SIDE
        black_image = torch.zeros(
            (side * side, patch_dim), dtype=inputs_embeds.dtype, device=inputs_embeds.device
        )
        grid = torch.tensor([[1, side, side]], dtype=torch.long, device=inputs_embeds.device)
        features, _ = qwen2_vl.unpack_visual_output(model.visual(black_image, grid_thw=grid))
        inputs_embeds = inputs_embeds + 0.0 * features.mean()
        if attention_mask is not None:
            attention_mask = attention_mask.to(inputs_embeds.device)
        return inputs_embeds, attention_mask

    qwen2_vl._get_input_embeds = _get_input_embeds  # type: ignore[attr-defined]


BRIDGE = Bridge(
    name="text-only-micro-batch",
    module="verl.models.transformers.qwen2_vl",
    requires={"verl": VERL, "transformers": TRANSFORMERS},
    twin="patches/verl/0006-qwen2-vl-unpack-the-dummy-vision-pass.patch",
    apply=_unpack_the_dummy_pass,
)
