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


def test_batch_with_an_image_is_as_before(repaired, released, model):
    patches = torch.randn(16, 3 * 2 * 14 * 14)
    ids = torch.tensor([[1, IMAGE_ID, IMAGE_ID, IMAGE_ID, IMAGE_ID, 2]])
    arguments = {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 4]])}
    expected, _ = released(text_only_batch.BRIDGE)._get_input_embeds(model, ids, **arguments)
    got, _ = repaired(text_only_batch.BRIDGE)._get_input_embeds(model, ids, **arguments)
    assert torch.equal(got, expected)
