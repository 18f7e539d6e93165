"""The pixels of an X server: from its framebuffer file to images and PNG bytes."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import numpy as np
from PIL import Image

from verl_gui.envs.png import BAND_ROWS, Band, encode_band, join_bands

_XWD_FIELDS = 25  # 32-bit big-endian words of an X window dump header, version 7


class Framebuffer:
    """Reads the file that ``Xvfb -fbdir`` keeps its pixels in.

    The file is mapped, so a look costs one copy and no request to the server. The X cursor is part of it.

    Args:
        path: the file, an X window dump of depth 24 with 32 bits a pixel.

    Raises:
        ValueError: the file has another form.
    """

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._map = mmap.mmap(fd, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)
        header = struct.unpack(f">{_XWD_FIELDS}I", self._map[: 4 * _XWD_FIELDS])
        header_size, _, _, depth, width, height, _, _, _, _, _, bits_per_pixel, stride = header[:13]
        colors = header[19]
        if depth != 24 or bits_per_pixel != 32:
            self._map.close()
            raise ValueError(f"{path}: expected depth 24 in 32 bits, got {depth} in {bits_per_pixel}")
        self.size: tuple[int, int] = (width, height)
        self._stride = stride
        self._start = header_size + 12 * colors
        # The last snapshot that became a PNG, and its bands.
        self._encoded: tuple[bytes, list[Band]] = (b"", [])

    def grab(self, height: int | None = None) -> Image.Image:
        """The screen now (or its top ``height`` rows), as an RGB image of its own."""
        rows = self.size[1] if height is None else height
        pixels = self._map[self._start : self._start + self._stride * rows]
        return self._image(pixels, rows)

    def snapshot(self) -> bytes:
        """The raw pixels now, to be compared with another look."""
        return self._map[self._start :]

    def png(self, snapshot: bytes) -> bytes:
        """A :meth:`snapshot` as PNG bytes. Rows that are as they were last time are not compressed again."""
        known, known_bands = self._encoded
        bands = []
        for index, top in enumerate(range(0, self.size[1], BAND_ROWS)):
            rows = min(BAND_ROWS, self.size[1] - top)
            pixels = snapshot[self._stride * top : self._stride * (top + rows)]
            if known_bands and pixels == known[self._stride * top : self._stride * (top + rows)]:
                bands.append(known_bands[index])
            else:
                bands.append(encode_band(np.asarray(self._image(pixels, rows))))
        self._encoded = (snapshot, bands)
        return join_bands(self.size, bands)

    def pixel(self, x: int, y: int) -> int:
        """The colour of one pixel as 0xRRGGBB."""
        start = self._start + y * self._stride + 4 * x
        return int.from_bytes(self._map[start : start + 3], "little")

    def _image(self, pixels: bytes, rows: int) -> Image.Image:
        return Image.frombytes("RGB", (self.size[0], rows), pixels, "raw", "BGRX", self._stride)

    def close(self) -> None:
        """Unmap the file. Safe to call again."""
        self._map.close()
