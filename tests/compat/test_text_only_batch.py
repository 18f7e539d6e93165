import pytest
import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
)

from verl_gui.compat import text_only_batch

IMAGE_ID = 60
TEXT = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
}
VISION = {"depth": 1, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2, "in_channels": 3}


@pytest.fixture(params=["qwen2_vl", "qwen2_5_vl"])
def model(request):
    torch.manual_seed(0)
    ids = {
        "image_token_id": IMAGE_ID,
        "video_token_id": 61,
        "vision_start_token_id": 62,
        "vision_end_token_id": 63,
    }
    if request.param == "qwen2_vl":
        vision = {**VISION, "embed_dim": 32, "hidden_size": 32, "mlp_ratio": 1}
        return Qwen2VLForConditionalGeneration(
            Qwen2VLConfig(text_config=TEXT, vision_config=vision, **ids)
        ).model
    vision = {**VISION, "hidden_size": 32, "intermediate_size": 32, "out_hidden_size": 32, "window_size": 112}
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision, **ids)
    ).model


def test_released_verl_crashes(released, model):
    with pytest.raises(AttributeError, match="mean"):
        released(text_only_batch.BRIDGE)._get_input_embeds(model, torch.tensor([[1, 2, 3]]))


def test_text_only_batch_gets_its_text_embeddings(repaired, model):
    ids = torch.tensor([[1, 2, 3]])
    embeds, mask = repaired(text_only_batch.BRIDGE)._get_input_embeds(model, ids, torch.ones_like(ids))
    assert torch.equal(embeds, model.get_input_embeddings()(ids)) and torch.equal(mask, torch.ones_like(ids))


def test_vision_tower_stays_in_the_graph_with_zero_gradient(repaired, model):
    embeds, _ = repaired(text_only_batch.BRIDGE)._get_input_embeds(model, torch.tensor([[1, 2, 3]]))
    embeds.sum().backward()
    gradients = [p.grad for p in model.visual.parameters()]
    assert all(g is not None and not g.any() for g in gradients)
    assert model.get_input_embeddings().weight.grad[1:4].eq(1).all()


def test_a_tower_that_overflows_does_not_reach_text(repaired, model):
    with torch.no_grad():
        for parameter in model.visual.parameters():
            parameter.fill_(torch.inf)
    ids = torch.tensor([[1, 2, 3]])
    embeds, _ = repaired(text_only_batch.BRIDGE)._get_input_embeds(model, ids)
    assert torch.equal(embeds, model.get_input_embeddings()(ids))


PATCHES = torch.randn(16, 3 * 2 * 14 * 14, generator=torch.Generator().manual_seed(0))
GRID = torch.tensor([[1, 4, 4]])
PIXELS = {"pixel_values": PATCHES, "image_grid_thw": GRID}
CLIP = {"pixel_values_videos": PATCHES.flip(0), "video_grid_thw": GRID}
IMAGE, VIDEO = [IMAGE_ID] * 4, [61] * 4


def passes(model):
    """Counts the passes of the vision tower, and the patches of each."""
    seen = []
    model.visual.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    return seen


def test_batch_with_an_image_is_as_before(repaired, released, model):
    ids = torch.tensor([[1, *IMAGE, 2]])
    for arguments, row in ((PIXELS, ids), (CLIP, torch.tensor([[1, *VIDEO, 2]]))):
        expected, _ = released(text_only_batch.BRIDGE)._get_input_embeds(model, row, **arguments)
        got, _ = repaired(text_only_batch.BRIDGE)._get_input_embeds(model, row, **arguments)
        assert torch.equal(got, expected)


def test_images_and_videos_together_are_as_before_but_share_a_pass(repaired, released, model):
    ids = torch.tensor([[1, *VIDEO, 2, *IMAGE], [*IMAGE, 3, 4, *VIDEO]])
    twice = {name: torch.cat([value, value]) for name, value in {**PIXELS, **CLIP}.items()}
    seen = passes(model)
    expected, _ = released(text_only_batch.BRIDGE)._get_input_embeds(model, ids, **twice)
    assert seen == [32, 32]  # where another rank makes one pass, FSDP waits for ever
    got, _ = repaired(text_only_batch.BRIDGE)._get_input_embeds(model, ids, **twice)
    assert seen == [32, 32, 64]
    torch.testing.assert_close(got, expected)


def test_every_mixture_makes_one_pass_and_text_the_smallest(repaired, model):
    module, seen = repaired(text_only_batch.BRIDGE), passes(model)
    for row, arguments in (([1, 2], {}), (IMAGE, PIXELS), (VIDEO, CLIP), (IMAGE + VIDEO, {**PIXELS, **CLIP})):
        module._get_input_embeds(model, torch.tensor([row]), **arguments)
    assert seen == [4, 16, 16, 32]


@pytest.mark.parametrize(
    ("row", "arguments"),
    [
        ([1, *IMAGE[:3]], PIXELS),
        ([1, *IMAGE, 2, IMAGE_ID], PIXELS),
        ([1, 2], PIXELS),
        ([1, IMAGE_ID], {}),
        ([1, *IMAGE, *IMAGE], {**PIXELS, "image_grid_thw": torch.cat([GRID, GRID])}),
        ([1, *VIDEO], PIXELS),
    ],
    ids=["cut", "sampled", "pixels alone", "placeholder alone", "pixels missing", "of the other kind"],
)
def test_what_does_not_belong_together_is_refused(repaired, model, row, arguments):
    module, seen = repaired(text_only_batch.BRIDGE), passes(model)
    with pytest.raises(ValueError, match=r"patches make a token"):
        module._get_input_embeds(model, torch.tensor([row]), **arguments)
    assert seen == []
