"""How a picture is laid out in tokens, told from its size alone.

The image processors of Qwen2-VL and Qwen2.5-VL need pixels to say how many tokens a picture takes; the answer
depends on nothing but width and height. So a screenshot need not be decoded to be laid out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize


def picture_grid(
    size: tuple[int, int], image_processor: Any, settings: Mapping[str, Any] | None = None
) -> tuple[int, int, int]:
    """Temporal, vertical and horizontal patches of a picture: its row of ``image_grid_thw``.

    Args:
        size: width and height in pixels.
        image_processor: of Qwen2-VL or Qwen2.5-VL.
        settings: what the processor is called with (``min_pixels``, ``max_pixels``; verl's
            ``mm_processor_kwargs``). As there, one of the two alone changes nothing.

    Raises:
        ValueError: the picture is more than 200 times as long as wide.
    """
    settings = settings or {}
    least, most = settings.get("min_pixels"), settings.get("max_pixels")
    if least is None or most is None:
        edges = image_processor.size
        least, most = edges["shortest_edge"], edges["longest_edge"]
    patch = image_processor.patch_size
    width, height = size
    height, width = smart_resize(height, width, patch * image_processor.merge_size, least, most)
    return 1, height // patch, width // patch


class GridsOnly:
    """Stands for an image processor where a processor lays out text: says the grids, makes no pixels.

    Args:
        image_processor: the real one.
    """

    def __init__(self, image_processor: Any) -> None:
        self._real = image_processor

    def __getattr__(self, name: str) -> Any:
        if name == "_real":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self._real, name)

    def __call__(self, images: Sequence[Any], **settings: Any) -> dict[str, torch.Tensor]:
        """``image_grid_thw`` (n, 3) of pictures that have a ``size``."""
        grids = [picture_grid(image.size, self._real, settings) for image in images]
        return {"image_grid_thw": torch.tensor(grids, dtype=torch.long)}


def layout_processor(processor: Any) -> Any:
    """A twin of ``processor`` that expands placeholders and tokenizes as it does, and touches no pixel."""
    twin = copy.copy(processor)
    twin.image_processor = GridsOnly(processor.image_processor)
    return twin
