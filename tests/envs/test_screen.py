import io
import random
import struct

import pytest
from PIL import Image

from verl_gui.envs.screen import Framebuffer, encode_png
from verl_gui.envs.worker import check_screenshot


def write_dump(path, width=3, height=2, depth=24, bits=32, padding=4, colors=2):
    """An X window dump as Xvfb writes it; pixel (x, y) is (10x, 20y, 30)."""
    stride = 4 * width + padding
    name = b"screen\0"
    fields = [100 + len(name), 7, 2, depth, width, height, 0, 0, 32, 0, 32, bits, stride]
    fields += [4, 0xFF0000, 0xFF00, 0xFF, 8, 256, colors, width, height, 0, 0, 0]
    rows = b"".join(
        b"".join(bytes((30, 20 * y, 10 * x, 0)) for x in range(width)) + b"\xee" * padding
        for y in range(height)
    )
    path.write_bytes(struct.pack(">25I", *fields) + name + b"\0" * 12 * colors + rows)


def test_framebuffer_reads_pixels_in_their_places(tmp_path):
    write_dump(tmp_path / "dump")
    framebuffer = Framebuffer(tmp_path / "dump")
    image = framebuffer.grab()
    assert framebuffer.size == image.size == (3, 2)
    assert image.getpixel((2, 1)) == (20, 20, 30)
    assert framebuffer.pixel(2, 1) == 0x14141E
    assert framebuffer.grab(height=1).size == (3, 1)
    framebuffer.close()


def test_framebuffer_sees_later_changes(tmp_path):
    write_dump(tmp_path / "dump")
    framebuffer = Framebuffer(tmp_path / "dump")
    before = framebuffer.snapshot()
    with open(tmp_path / "dump", "r+b") as file:
        file.seek(-4 - 4, 2)  # the blue byte of the last pixel, before the padding
        file.write(b"\x63")
    assert framebuffer.snapshot() != before
    assert framebuffer.pixel(2, 1) & 0xFF == 0x63


def test_framebuffer_refuses_other_forms(tmp_path):
    write_dump(tmp_path / "dump", depth=16, bits=16)
    with pytest.raises(ValueError, match="depth 24"):
        Framebuffer(tmp_path / "dump")


def test_png_is_lossless():
    image = Image.effect_noise((40, 30), 80).convert("RGB")
    decoded = Image.open(io.BytesIO(encode_png(image)))
    assert decoded.format == "PNG" and decoded.tobytes() == image.tobytes()


@pytest.mark.parametrize("size, mode", [((1, 1), "RGB"), ((3, 1), "RGB"), ((1, 3), "L"), ((64, 48), "RGBA")])
def test_png_holds_every_pixel(size, mode):
    image = Image.frombytes(mode, size, random.Random(7).randbytes(size[0] * size[1] * len(mode)))
    png = encode_png(image)
    check_screenshot(png, size)
    assert Image.open(io.BytesIO(png)).tobytes() == image.convert("RGB").tobytes()
