"""A screenshot is pickled small, decoded once in a process, and known to vLLM by its content."""

import io
import pickle
import subprocess
import sys
import uuid

import pytest
import ray
from PIL import ExifTags, Image

from verl_gui.models import screenshot as module
from verl_gui.models.screenshot import PictureCache, Screenshot, ScreenshotError


def png(shade, size=(1920, 1080)):
    out = io.BytesIO()
    Image.effect_noise(size, shade).convert("RGB").save(out, "PNG", compress_level=1)
    return out.getvalue()


@pytest.fixture(autouse=True)
def cache(monkeypatch):
    fresh = PictureCache(10**9)
    monkeypatch.setattr(module, "_CACHE", fresh)
    return fresh


@pytest.fixture
def decoded(monkeypatch):
    """Names of the pictures that were decoded."""
    names = []
    real = module.decode

    def decode(encoded, name):
        names.append(name)
        return real(encoded, name)

    monkeypatch.setattr(module, "decode", decode)
    return names


def test_it_knows_its_size_and_arrives_as_the_picture():
    encoded = png(20)
    screenshot = Screenshot(encoded)
    assert screenshot.size == (screenshot.width, screenshot.height) == (1920, 1080)
    arrived = pickle.loads(pickle.dumps(screenshot))
    with Image.open(io.BytesIO(encoded)) as expected:
        assert isinstance(arrived, Image.Image) and arrived.mode == "RGB"
        assert arrived.tobytes() == expected.convert("RGB").tobytes()
    assert screenshot.picture() is arrived


def test_each_process_decodes_it_once(decoded):
    one, other = Screenshot(png(20)), Screenshot(png(40))
    for turn in ([one], [one, other], [one, other, one]):
        pickle.loads(pickle.dumps(turn))
    assert len(decoded) == 2


def test_a_published_one_is_pickled_as_a_reference():
    encoded = png(20)
    assert len(encoded) > 500_000
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        screenshot = Screenshot(encoded)
        screenshot.publish()

        @ray.remote
        def look(pictures):
            return [(picture.size, picture.getexif()[ExifTags.Base.ImageID]) for picture in pictures]

        size, name = ray.get(look.remote([screenshot, screenshot]), timeout=60)[1]
        assert size == (1920, 1080) and name == screenshot.picture().getexif()[ExifTags.Base.ImageID]
        assert len(ray.cloudpickle.dumps([screenshot] * 15)) < 5_000
    finally:
        ray.shutdown()


def test_without_ray_publishing_changes_nothing():
    screenshot = Screenshot(png(20))
    screenshot.publish()
    assert pickle.loads(pickle.dumps(screenshot)).size == (1920, 1080)


def test_vllm_takes_its_name_for_its_identity():
    """In a process of its own: importing vLLM takes long and changes the process."""
    program = """
import sys, pickle
from vllm.multimodal.hasher import MultiModalHasher
one, same, other = pickle.load(sys.stdin.buffer)
keys = [MultiModalHasher.hash_kwargs(image=picture) for picture in (one, same, other)]
assert keys[0] == keys[1] != keys[2], keys
other.getexif().update(one.getexif())
assert MultiModalHasher.hash_kwargs(image=other) == keys[0], "the pixels were hashed"
"""
    one, other = Screenshot(png(20, (64, 64))), Screenshot(png(40, (64, 64)))
    pictures = pickle.dumps([one, Screenshot(one.encoded), other])
    subprocess.run([sys.executable, "-c", program], input=pictures, check=True, timeout=300)


def test_the_cache_is_bounded_and_forgets_the_longest_unused(decoded):
    pictures = {bytes([n]) * 16: png(n + 1, (64, 64)) for n in range(3)}
    a, b, c = pictures
    cache = PictureCache(2 * 64 * 64 * 3)
    for name in (a, b, a, c, a, b):
        cache.get(name, lambda name=name: pictures[name])
    assert decoded == [a, b, c, b]
    assert cache._held == 2 * 64 * 64 * 3


def test_one_larger_than_the_cache_still_comes():
    assert PictureCache(1).get(bytes(16), lambda: png(1, (64, 64))).size == (64, 64)


@pytest.mark.parametrize("encoded", [b"", b"<html>", bytes(2000)])
def test_what_is_no_picture_is_refused_at_once(encoded):
    with pytest.raises(ScreenshotError, match=r"screenshot [0-9a-f]{32}"):
        Screenshot(encoded)


def test_a_torn_one_is_refused_where_it_is_decoded():
    torn = Screenshot(png(20)[:5000])
    with pytest.raises(ScreenshotError, match=r"screenshot [0-9a-f]{32}"):
        torn.picture()


def test_its_name_is_that_of_its_content():
    one = Screenshot(png(20, (64, 64)))
    name = one.picture().getexif()[ExifTags.Base.ImageID]
    assert isinstance(name, uuid.UUID) and name == uuid.UUID(bytes=one._name)
    assert Screenshot(one.encoded)._name == one._name != Screenshot(png(40, (64, 64)))._name
