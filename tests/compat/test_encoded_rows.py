"""verl's engines take rows with encoded screenshots, by the bridge and by its patch."""

import io
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from tensordict import NonTensorStack
from transformers import Qwen2VLImageProcessor

from verl_gui.compat import encoded_images
from verl_gui.models.encoded_images import encode, with_pixels


@pytest.fixture
def extract(repaired):
    module = repaired(encoded_images.BRIDGE)
    if hasattr(module, "register_multi_modal_row_transform"):  # the patch leaves the choice to a package
        module.register_multi_modal_row_transform(with_pixels)
        module.register_multi_modal_row_transform(with_pixels)  # once more does nothing
    return module.extract_multi_modal_inputs


@pytest.fixture
def rows():
    processor = SimpleNamespace(image_processor=Qwen2VLImageProcessor())
    pictures = [Image.effect_noise((56, 84), shade).convert("RGB") for shade in (10, 60)]

    def png(picture):
        out = io.BytesIO()
        picture.save(out, "PNG")
        return out.getvalue()

    plain = [dict(processor.image_processor(images=[p], return_tensors="pt")) for p in pictures]
    seqlens = {"images_seqlens": torch.tensor([24])}
    encoded = [encode([png(p)], [p.size], processor) for p in pictures]
    return [row | seqlens for row in plain], encoded


def test_released_verl_hands_the_bytes_to_the_model(released, rows):
    _, encoded = rows
    extracted = released(encoded_images.BRIDGE).extract_multi_modal_inputs(encoded)
    assert "pixel_values" not in extracted and "encoded_images" in extracted


@pytest.mark.parametrize("stack", [list, lambda rows: NonTensorStack(*rows)], ids=["list", "stack"])
def test_the_engine_gets_pixels(extract, rows, stack):
    plain, encoded = rows
    expected, extracted = extract(stack([plain[0], {}, plain[1]])), extract(stack([encoded[0], {}, plain[1]]))
    assert extracted.keys() == expected.keys()
    assert all(torch.equal(extracted[key], expected[key]) for key in expected)


def test_chosen_rows_only(extract, rows):
    plain, encoded = rows
    chosen = extract(encoded, indices=[1, 7])
    assert torch.equal(chosen["pixel_values"], plain[1]["pixel_values"])
    assert extract([None, {}]) == {}


def test_other_rows_are_left_alone(extract):
    rows = [{"pixel_values_videos": torch.ones(4, 2)}, None]
    assert torch.equal(extract(rows)["pixel_values_videos"], torch.ones(4, 2))
