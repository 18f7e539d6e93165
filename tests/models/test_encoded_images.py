"""Rows with encoded screenshots become, bit by bit, the rows that verl would have stored."""

import io
from types import SimpleNamespace

import pytest
import torch
from layouts import IDS, MODELS, cases, tokens
from PIL import Image
from tensordict import NonTensorStack, TensorDict
from tiny_models import tiny_model
from transformers import Qwen2VLImageProcessor
from verl.utils import tensordict_utils
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from verl_gui.models import encoded_images
from verl_gui.models.encoded_images import IMAGES, RECIPE, SPANS, EncodedRowError, encode, with_pixels
from verl_gui.models.picture_grid import picture_grid
from verl_gui.models.rope_index import engine_position_ids

PROCESSOR = SimpleNamespace(image_processor=Qwen2VLImageProcessor())
LIMITS = {"min_pixels": 3136, "max_pixels": 50176}
SIZES = [(56, 84), (640, 480), (480, 640), (1920, 1080), (30, 29), (1000, 31), (333, 257)]


def noise(size, seed=0, mode="RGB"):
    generator = torch.Generator().manual_seed(seed)
    channels = len(mode)
    data = torch.randint(0, 256, (size[1], size[0], channels), generator=generator, dtype=torch.uint8)
    return Image.frombytes(mode, size, data.numpy().tobytes())


def png(picture, **options):
    out = io.BytesIO()
    picture.save(out, **{"format": "PNG", **options})
    return out.getvalue()


def stock(pictures, settings):
    """What verl's worker stores: the processor's output and ``images_seqlens``."""
    made = dict(
        PROCESSOR.image_processor(
            images=[picture.convert("RGB") for picture in pictures], return_tensors="pt", **settings
        )
    )
    grids = made["image_grid_thw"]
    made["images_seqlens"] = torch.repeat_interleave(grids[:, 1] * grids[:, 2], grids[:, 0])
    return made


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    fresh = encoded_images._ResizedPictures(most_bytes=10**9, threads=2)
    monkeypatch.setattr(encoded_images, "_CACHE", fresh)
    return fresh


def equal(one, other):
    assert one.keys() == other.keys()
    for key in one:
        assert one[key].dtype == other[key].dtype and torch.equal(one[key], other[key]), key


@pytest.mark.parametrize("settings", [{}, LIMITS, {"max_pixels": 50176}], ids=["default", "limits", "half"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_pixels_are_bit_identical(size, settings):
    pictures = [noise(size, seed) for seed in range(2)]
    row = encode([png(picture) for picture in pictures], [size] * 2, PROCESSOR, settings)
    assert not any(value.is_floating_point() for value in row.values())
    equal(with_pixels([row])[0], stock(pictures, settings))


@pytest.mark.parametrize(
    ("mode", "options"), [("RGBA", {}), ("L", {}), ("RGB", {"format": "WEBP", "lossless": True})]
)
def test_other_kinds_of_pictures_too(mode, options):
    picture = noise((100, 60), mode=mode)
    row = encode([png(picture, **options)], [picture.size], PROCESSOR, LIMITS)
    equal(with_pixels([row])[0], stock([picture], LIMITS))


def test_pictures_of_different_sizes_keep_their_order():
    pictures = [noise(size, seed) for seed, size in enumerate([(56, 84), (640, 480), (56, 84), (84, 56)])]
    row = encode([png(p) for p in pictures], [p.size for p in pictures], PROCESSOR, LIMITS)
    equal(with_pixels([row])[0], stock(pictures, LIMITS))


def test_equal_pictures_are_stored_once():
    one, other = noise((56, 84)), noise((56, 84), 1)
    shown = [one, other, one, one]
    row = encode([png(p) for p in shown], [(56, 84)] * 4, PROCESSOR, LIMITS)
    assert len(row[IMAGES]) == len(png(one)) + len(png(other))
    equal(with_pixels([row])[0], stock(shown, LIMITS))


def test_both_passes_and_all_rows_share_one_resize(cache):
    shared, own = noise((56, 84)), noise((56, 84), 1)
    rows = [
        encode([png(p) for p in pictures], [(56, 84)] * len(pictures), PROCESSOR, LIMITS)
        for pictures in ([shared], [shared, own], [own])
    ]
    first = with_pixels(rows)
    again = [row for chunk in (rows[:1], rows[1:]) for row in with_pixels(chunk)]
    assert cache.made == 2
    for one, other in zip(first, again, strict=True):
        equal(one, other)


def test_the_cache_is_bounded_and_forgets_the_oldest(monkeypatch):
    cache = encoded_images._ResizedPictures(most_bytes=2 * 3 * 56 * 84, threads=2)
    monkeypatch.setattr(encoded_images, "_CACHE", cache)
    pictures = [noise((56, 84), seed) for seed in range(4)]
    rows = [encode([png(p)], [p.size], PROCESSOR, LIMITS) for p in pictures]
    for row, picture in zip(rows, pictures, strict=True):
        equal(with_pixels([row])[0], stock([picture], LIMITS))
    assert cache._held == sum(kept.nbytes for kept in cache._kept.values()) <= 2 * 3 * 56 * 84
    with_pixels(rows[2:])
    assert cache.made == 4
    with_pixels(rows[:1])
    assert cache.made == 5


def test_rows_without_encoded_pictures_pass_as_they_are():
    pixels = stock([noise((56, 84))], LIMITS)
    assert with_pixels([None, {}, pixels]) == [{}, {}, pixels]
    assert encode([], [], PROCESSOR, LIMITS) == {}


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b[:60] + bytes(len(b) - 60)])
def test_a_torn_picture_says_where_it_is(damage):
    good, bad = png(noise((56, 84))), damage(png(noise((56, 84), 1)))
    rows = [encode([image], [(56, 84)], PROCESSOR, LIMITS) for image in (good, bad)]
    with pytest.raises(EncodedRowError, match=r"row 1: screenshot [0-9a-f]{32}"):
        with_pixels(rows)
    assert "pixel_values" in with_pixels(rows[:1])[0]


def test_a_picture_of_another_size_than_laid_out_is_refused():
    row = encode([png(noise((56, 84)))], [(84, 56)], PROCESSOR, LIMITS)
    with pytest.raises(EncodedRowError, match=r"\[\[1, 4, 6\]\].*\[\[1, 6, 4\]\]"):
        with_pixels([row])


def test_a_row_may_name_no_other_class():
    row = encode([png(noise((56, 84)))], [(56, 84)], PROCESSOR, LIMITS)
    text = bytes(row[RECIPE].tolist()).replace(b"Qwen2VLImageProcessor", b"AutoModel")
    row[RECIPE] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    with pytest.raises(EncodedRowError, match=r"row 0: .*AutoModel"):
        with_pixels([row])


@pytest.mark.parametrize("size", [*SIZES, (2560, 1440), (3840, 2160), (1080, 1920)], ids=str)
def test_the_grid_is_the_processors(size):
    real = PROCESSOR.image_processor(images=[Image.new("RGB", size)], return_tensors="pt", **LIMITS)
    assert picture_grid(size, PROCESSOR.image_processor, LIMITS) == tuple(real["image_grid_thw"][0].tolist())


@cases("bytes")
def test_a_batch_of_screens_travels_as_bytes_of_pictures(case):
    """Pixels of a batch would fill a node; what travels is the pictures, and each once."""
    size = tuple(case["screen"])
    settings = {"min_pixels": 3136, "max_pixels": 2116800}
    _, rows, columns = picture_grid(size, PROCESSOR.image_processor, settings)
    pixels = rows * columns * 3 * 2 * 14 * 14 * 4
    assert rows * columns == case["patches"]
    assert round(pixels / 2**20, 1) == case["mib"]
    assert round(case["total_images"] * pixels / 2**30, 1) == case["gib"]
    image = png(Image.effect_noise((300, 300), 50).resize(size).convert("RGB"))
    row = encode([image] * 15, [size] * 15, PROCESSOR, settings)
    assert sum(value.nbytes for value in row.values()) < len(image) + 5_000


def test_a_picture_that_cannot_be_laid_out_is_refused():
    with pytest.raises(ValueError, match="200"):
        picture_grid((3000, 10), PROCESSOR.image_processor)


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_bit_identical(name):
    """Two rows with pictures and one of text, as verl's engine prepares them for the model."""
    layouts = ["a VS I*6 VE b VS I*6 VE c", "d e", "a VS I*6 VE b"]
    shown = [[noise((56, 84)), noise((56, 84), 1)], [], [noise((56, 84))]]
    encoded = [
        encode([png(p) for p in of_row], [(56, 84)] * len(of_row), PROCESSOR, LIMITS) for of_row in shown
    ]
    plain = [stock(of_row, LIMITS) if of_row else {} for of_row in shown]

    def gradients(rows):
        ids = [tokens(layout) for layout in layouts]
        positions = [
            engine_position_ids(of_row, row.get("image_grid_thw"), ids=IDS)
            for of_row, row in zip(ids, rows, strict=True)
        ]
        batch = TensorDict(
            {
                "input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged),
                "position_ids": torch.nested.as_nested_tensor(positions, layout=torch.jagged),
                "multi_modal_inputs": NonTensorStack(*rows),
            },
            batch_size=len(rows),
        )
        tensordict_utils.maybe_fix_3d_position_ids(batch)
        tensordict_utils.assign_non_tensor(batch, use_remove_padding=False, temperature=1.0)
        inputs, _ = FSDPEngineWithLMHead.prepare_model_inputs(SimpleNamespace(pad_to_length=None), batch)
        assert inputs["pixel_values"].shape[0] == 3 * 24
        assert not inputs.keys() & {IMAGES, SPANS, RECIPE}
        model = tiny_model(name)
        model(**inputs, use_cache=False).logits.square().sum().backward()
        return {key: parameter.grad for key, parameter in model.named_parameters()}

    expected = gradients(plain)
    equal(gradients(encoded), expected)
    assert any(gradient.any() for key, gradient in expected.items() if "visual" in key)
