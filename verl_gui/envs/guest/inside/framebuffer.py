"""Screenshots from the file that ``Xvfb -fbdir`` keeps its pixels in, the pointer included."""

import mmap
import struct
import zlib


def read_size(path: str) -> tuple[int, int]:
    """Width and height of the screen in pixels."""
    with open(path, "rb") as file:
        header = struct.unpack(">25I", file.read(100))
    return header[4], header[5]


def screenshot(path: str) -> bytes:
    """The whole screen as PNG bytes (RGB, fast compression)."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pixels:
        header = struct.unpack(">25I", pixels[:100])
        width, height, stride, colors = header[4], header[5], header[12], header[19]
        start = header[0] + 12 * colors
        data = pixels[start : start + stride * height]
    line = 1 + 3 * width  # of the picture: a filter byte, then RGB
    picture = bytearray(line * height)
    for channel in range(3):  # of the screen: BGRX
        plane = data[2 - channel :: 4]
        for row in range(height):
            begin = row * (stride // 4)
            picture[row * line + 1 + channel : (row + 1) * line : 3] = plane[begin : begin + width]
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(bytes(picture), 1)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))
