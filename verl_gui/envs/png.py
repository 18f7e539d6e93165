"""PNG bytes of screenshots, in bands of rows, so that only what changed has to be compressed again.

Between two steps of an agent most of a screen stays as it is, and compressing all of it took a large part of
a step's processor time. A PNG's pixels are one zlib stream in any number of chunks; here each band of rows is
a chunk of its own, compressed on its own (``Z_FULL_FLUSH``, RFC 1950 and 1951), whose bytes depend on nothing
but its pixels: a band that did not change is the chunk it was.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

BAND_ROWS = 32  # fewer: less to compress after a change; more: fewer chunks, and a better compression of each

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB, _FILTER_SUB, _FILTER_UP = 2, 1, 2  # PNG's numbers for the kind of pixels and the filters of a row
_ZLIB_HEADER, _LAST_BLOCK = b"\x78\x01", b"\x03\x00"
_ADLER_BASE = 65521
_LEVEL = 1


@dataclass(frozen=True)
class Band:
    """Some rows of a picture, ready to be put into a PNG.

    Attributes:
        chunk: they, as a complete IDAT chunk.
        adler: zlib's Adler-32 checksum of their filtered bytes.
        length: how many filtered bytes there are.
    """

    chunk: bytes
    adler: int
    length: int


def encode_band(pixels: npt.NDArray[np.uint8]) -> Band:
    """Rows of a picture, compressed without regard to other rows.

    Every row is stored as its difference to the row above, which suits screens: the result is as small as
    Pillow's, which tries all filters on each row, in less than half the time. Zlib's level 1 is several times
    faster than its default and little larger.

    Args:
        pixels: (rows, width, 3), RGB.
    """
    height, width, _ = pixels.shape
    flat = pixels.reshape(height, 3 * width)
    rows = np.empty((height, 1 + 3 * width), np.uint8)
    rows[0, 0], rows[1:, 0] = _FILTER_SUB, _FILTER_UP  # above its first row a band knows nothing
    rows[0, 1:4] = flat[0, :3]
    np.subtract(flat[0, 3:], flat[0, :-3], out=rows[0, 4:])
    np.subtract(flat[1:], flat[:-1], out=rows[1:, 1:])
    filtered = rows.tobytes()
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    data = compressor.compress(filtered) + compressor.flush(zlib.Z_FULL_FLUSH)
    return Band(_chunk(b"IDAT", data), zlib.adler32(filtered), len(filtered))


def join_bands(size: tuple[int, int], bands: Iterable[Band]) -> bytes:
    """The PNG of a picture of ``size`` (width, height), from all its bands, top to bottom."""
    header = struct.pack(">IIBBBBB", *size, 8, _RGB, 0, 0, 0)
    chunks, adler = [_chunk(b"IHDR", header), _chunk(b"IDAT", _ZLIB_HEADER)], 1
    for band in bands:
        chunks.append(band.chunk)
        adler = _joined_adler(adler, band)
    chunks += [_chunk(b"IDAT", _LAST_BLOCK + adler.to_bytes(4, "big")), _chunk(b"IEND", b"")]
    return _SIGNATURE + b"".join(chunks)


def encode_png(image: Image.Image) -> bytes:
    """PNG bytes of an image, as 8-bit RGB."""
    pixels = np.asarray(image.convert("RGB"))
    starts = range(0, image.height, BAND_ROWS)
    return join_bands(image.size, (encode_band(pixels[start : start + BAND_ROWS]) for start in starts))


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(data, zlib.crc32(kind))
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def _joined_adler(before: int, band: Band) -> int:
    """Adler-32 of what ``before`` is the checksum of, followed by a band (RFC 1950, section 8.2).

    The low half is one plus the sum of all bytes; the high half sums the low half after each byte, and to
    each of those the bytes before the band add what they had summed up to.
    """
    low, high = before & 0xFFFF, before >> 16
    joined_low = (low + (band.adler & 0xFFFF) - 1) % _ADLER_BASE
    joined_high = (high + (band.adler >> 16) + band.length * (low - 1)) % _ADLER_BASE
    return joined_high << 16 | joined_low
