import io
import struct

import pytest
from PIL import Image

from verl_gui.envs import screen
from verl_gui.envs.png import BAND_ROWS, encode_band, encode_png
from verl_gui.envs.screen import Framebuffer


def write_dump(path, width=3, height=2, depth=24, bits=32, padding=4, colors=2):
    """An X window dump as Xvfb writes it; pixel (x, y) is (10x, 20y mod 256, 30)."""
    stride = 4 * width + padding
    name = b"screen\0"
    fields = [100 + len(name), 7, 2, depth, width, height, 0, 0, 32, 0, 32, bits, stride]
    fields += [4, 0xFF0000, 0xFF00, 0xFF, 8, 256, colors, width, height, 0, 0, 0]
    rows = b"".join(
        b"".join(bytes((30, 20 * y % 256, 10 * x, 0)) for x in range(width)) + b"\xee" * padding
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


def test_png_of_a_changed_screen_is_that_of_a_screen_seen_for_the_first_time(tmp_path, monkeypatch):
    """Only the changed bands are compressed, and the picture doesn't depend on what was seen before."""
    width, height = 5, 3 * BAND_ROWS + 7
    write_dump(tmp_path / "dump", width, height)
    framebuffer = Framebuffer(tmp_path / "dump")
    compressed = []
    monkeypatch.setattr(
        screen, "encode_band", lambda pixels: (compressed.append(pixels.shape[0]), encode_band(pixels))[1]
    )
    first = framebuffer.png(framebuffer.snapshot())
    assert compressed == [BAND_ROWS] * 3 + [7]
    assert framebuffer.png(framebuffer.snapshot()) == first and len(compressed) == 4

    with open(tmp_path / "dump", "r+b") as file:
        file.seek(-(4 * width + 4) * (7 + BAND_ROWS), 2)  # the first pixel of the third band
        file.write(b"\x63\x62\x61")
    second = framebuffer.png(framebuffer.snapshot())
    assert compressed[4:] == [BAND_ROWS]
    assert second == encode_png(framebuffer.grab()) != first
    assert Image.open(io.BytesIO(second)).getpixel((0, 2 * BAND_ROWS)) == (0x61, 0x62, 0x63)
