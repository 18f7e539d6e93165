import io
import random
import struct
import zlib

import pytest
from PIL import Image

from verl_gui.envs.png import BAND_ROWS, encode_png
from verl_gui.envs.worker import check_screenshot


def pixel_data(png):
    """What the pixel chunks hold once decompressed; zlib checks the checksum."""
    at, data = 8, b""
    while at < len(png):
        (length,), kind = struct.unpack_from(">I", png, at), png[at + 4 : at + 8]
        data += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return zlib.decompress(data)


@pytest.mark.parametrize(
    "size, mode",
    [
        ((1, 1), "RGB"),
        ((3, 1), "RGB"),
        ((1, 3), "L"),
        ((64, BAND_ROWS), "RGBA"),
        ((40, BAND_ROWS + 1), "RGB"),
        ((300, 4 * BAND_ROWS - 1), "RGB"),  # its sums leave the range of a checksum's halves
    ],
)
def test_png_holds_every_pixel(size, mode):
    image = Image.frombytes(mode, size, random.Random(7).randbytes(size[0] * size[1] * len(mode)))
    png = encode_png(image)
    check_screenshot(png, size)
    decoded = Image.open(io.BytesIO(png))
    assert decoded.format == "PNG" and decoded.tobytes() == image.convert("RGB").tobytes()
    assert len(pixel_data(png)) == size[1] * (1 + 3 * size[0])


@pytest.mark.parametrize("shade", [0, 255])
def test_png_of_one_colour_is_small(shade):
    """6 MB of pixels: each is stored as its difference to a neighbour, also in the first row of a band."""
    assert len(encode_png(Image.new("RGB", (1920, 1080), (shade,) * 3))) < 60_000
