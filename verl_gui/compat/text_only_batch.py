"""verl's vision pass for Qwen2-VL / 2.5-VL crashes without images and runs twice with images and videos.

The tower has to run equally often on every FSDP rank. For a text-only micro-batch verl passes a dummy image
and averages what ``model.visual`` returns, which used to be a tensor and is a ``BaseModelOutputWithPooling``
in transformers 5: every text-only micro-batch fails. (The average times zero would also turn one infinite
activation into NaN everywhere.) A micro-batch with images and videos makes two passes where the other ranks
make one, and all of them hang. Placeholders that lost their pictures are trained on as if they were words.
:mod:`verl_gui.models.vision_pass` makes one pass always.
"""

from types import ModuleType
from typing import Any

from verl_gui.compat._guard import TRANSFORMERS, VERL, Bridge


def _pass_once(qwen2_vl: ModuleType) -> None:
    def _get_input_embeds(
        model: Any,
        input_ids: Any,
        attention_mask: Any = None,
        pixel_values: Any = None,
        pixel_values_videos: Any = None,
        image_grid_thw: Any = None,
        video_grid_thw: Any = None,
    ) -> tuple[Any, Any]:
        from verl_gui.models.vision_pass import embed_with_pictures

        embeds = embed_with_pictures(
            model,
            input_ids,
            pixel_values=pixel_values,
            image_grid_thw=image_grid_thw,
            pixel_values_videos=pixel_values_videos,
            video_grid_thw=video_grid_thw,
        )
        return embeds, attention_mask if attention_mask is None else attention_mask.to(embeds.device)

    qwen2_vl._get_input_embeds = _get_input_embeds  # type: ignore[attr-defined]


BRIDGE = Bridge(
    name="one-vision-pass",
    module="verl.models.transformers.qwen2_vl",
    requires={"verl": VERL, "transformers": TRANSFORMERS},
    twin="patches/verl/0006-qwen2-vl-one-vision-pass-per-forward.patch",
    apply=_pass_once,
)
