"""Token embeddings with pictures in their places, by exactly one pass of the vision tower per forward.

Under FSDP every pass of a sharded module is a collective: all ranks have to make the same passes in the same
order, or all of them wait for ever. What a rank's micro-batch holds (images, videos, both, only text) must
therefore not decide how often the tower runs. Images and videos share one pass; a micro-batch with neither
passes the smallest picture there is, a black one that becomes a single token, and scatters it to no place:
the embeddings stay what they are, to the last bit, and the tower gets gradients that are exactly zero.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class PlaceholderMismatch(ValueError):
    """Placeholders in the token ids, grids and pixels do not belong together."""


class _Pictures(NamedTuple):
    """Patches (n, patch_dim) with their grids, and the ``tokens`` places (B, L) that they go to."""

    patches: torch.Tensor
    grid_thw: torch.Tensor
    places: torch.Tensor
    tokens: int


def embed_with_pictures(
    model: Any,
    input_ids: torch.Tensor,
    *,
    pixel_values: torch.Tensor | None = None,
    image_grid_thw: torch.Tensor | None = None,
    pixel_values_videos: torch.Tensor | None = None,
    video_grid_thw: torch.Tensor | None = None,
) -> torch.Tensor:
    """Embeddings of a micro-batch of any mixture.

    Args:
        model: ``Qwen2VLModel`` or ``Qwen2_5_VLModel`` of transformers 5.9.0.
        input_ids: (B, L).
        pixel_values: (patches, patch_dim) of all images, row after row.
        image_grid_thw: (images, 3) frames, rows and columns of patches.
        pixel_values_videos, video_grid_thw: the same for videos.

    Returns:
        (B, L, hidden).

    Raises:
        PlaceholderMismatch: a picture needs as many placeholders as it has tokens, and pixels for its grid.
    """
    config, visual = model.config, model.visual
    images = input_ids == config.image_token_id
    videos = input_ids == config.video_token_id
    pictures = [
        *_checked("image", images, pixel_values, image_grid_thw, visual.spatial_merge_size),
        *_checked("video", videos, pixel_values_videos, video_grid_thw, visual.spatial_merge_size),
    ] or [_nowhere(config.vision_config, input_ids)]
    embeds = model.get_input_embeddings()(input_ids)
    features = visual(
        torch.cat([some.patches for some in pictures]).to(embeds.device, visual.dtype),
        grid_thw=torch.cat([some.grid_thw for some in pictures]).to(embeds.device),
    ).pooler_output.to(embeds.dtype)
    for some, of_some in zip(pictures, features.split([some.tokens for some in pictures]), strict=True):
        embeds = embeds.masked_scatter(some.places.unsqueeze(-1).expand_as(embeds), of_some)
    return embeds


def _checked(
    kind: str,
    places: torch.Tensor,
    patches: torch.Tensor | None,
    grid_thw: torch.Tensor | None,
    merge_size: int,
) -> list[_Pictures]:
    """The pictures of one kind, if the micro-batch has any."""
    placeholders = int(places.sum())
    rows = 0 if patches is None else len(patches)
    of_grids = 0 if grid_thw is None else int(grid_thw.prod(-1).sum())
    if rows != of_grids or placeholders != of_grids // merge_size**2:
        raise PlaceholderMismatch(
            f"the micro-batch has {placeholders} {kind} placeholders, {rows} rows of pixels and "
            f"{0 if grid_thw is None else len(grid_thw)} {kind} grids of {of_grids} patches in all "
            f"({merge_size**2} patches make a token): a sequence was cut inside a picture, lost its pictures "
            "or holds placeholders that the policy sampled"
        )
    return [] if patches is None or grid_thw is None else [_Pictures(patches, grid_thw, places, placeholders)]


def _nowhere(vision: Any, input_ids: torch.Tensor) -> _Pictures:
    """One black picture of one token, and no place for it."""
    side = vision.spatial_merge_size
    patch_dim = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    black = torch.zeros((side * side, patch_dim))
    return _Pictures(black, torch.tensor([[1, side, side]]), torch.zeros_like(input_ids, dtype=torch.bool), 1)
