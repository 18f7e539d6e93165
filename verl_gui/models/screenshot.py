"""A screenshot as it travels to the inference engine: encoded, and to each process once.

An agent loop sends the whole history of an episode to the engine at every turn. Decoded, a 1080p picture is
6 MB; fifteen turns send 750 MB of them. A :class:`Screenshot` is pickled as the name of its content and a
reference to its encoded bytes in Ray's object store, and unpickled as a picture that the process keeps for
the next turns. Its name is also where vLLM looks for the identity of a picture, instead of hashing pixels.
"""

from __future__ import annotations

import io
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from PIL import ExifTags, Image

CACHE_BYTES = 1 << 30
"""Decoded pictures that a process keeps, in bytes."""

FETCH_TIMEOUT_S = 120.0

_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


class ScreenshotError(ValueError):
    """Encoded bytes that are no picture; says which."""


class Screenshot:
    """An encoded picture with a ``size``, which unpickles as a :class:`PIL.Image.Image`.

    Args:
        encoded: PNG, WebP, or what else Pillow reads.

    Attributes:
        encoded: the bytes.
        size: width and height in pixels.

    Raises:
        ScreenshotError: the bytes don't begin as a picture does.
    """

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded
        self._name = blake2b(encoded, digest_size=16).digest()
        self._source: Any = encoded
        try:
            with Image.open(io.BytesIO(encoded)) as picture:
                self.size: tuple[int, int] = picture.size
        except _UNREADABLE as error:
            raise ScreenshotError(f"screenshot {self._name.hex()}: {error}") from error

    @property
    def width(self) -> int:
        """Pixels."""
        return self.size[0]

    @property
    def height(self) -> int:
        """Pixels."""
        return self.size[1]

    def publish(self) -> None:
        """Put the bytes into Ray's object store, where Ray runs; from now on a reference is pickled."""
        import ray

        if self._source is self.encoded and ray.is_initialized():
            self._source = ray.put(self.encoded)

    def picture(self) -> Image.Image:
        """The decoded picture, RGB; it is shared, so don't edit it."""
        return _CACHE.get(self._name, lambda: self.encoded)

    def __reduce__(self) -> tuple[Callable[..., Image.Image], tuple[bytes, Any]]:
        return _restore, (self._name, self._source)


class PictureCache:
    """Decoded pictures by name, the longest unused one leaves first. Safe between threads.

    Args:
        most_bytes: of all pictures together; the last one stays, whatever its size.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most, self._held = most_bytes, 0
        self._pictures: OrderedDict[bytes, Image.Image] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: bytes, encoded: Callable[[], bytes]) -> Image.Image:
        """The picture ``name``; ``encoded`` is called where the cache lacks it.

        Raises:
            ScreenshotError: the bytes are no picture.
        """
        with self._lock:
            if name in self._pictures:
                self._pictures.move_to_end(name)
                return self._pictures[name]
        picture = decode(encoded(), name)
        with self._lock:
            self._held += 0 if name in self._pictures else _nbytes(picture)
            self._pictures[name] = picture
            while self._held > self._most and len(self._pictures) > 1:
                self._held -= _nbytes(self._pictures.popitem(last=False)[1])
        return picture


def decode(encoded: bytes, name: bytes) -> Image.Image:
    """Decode a screenshot to RGB and write ``name`` (16 bytes) where vLLM looks for a picture's identity.

    Raises:
        ScreenshotError: it is no picture, or a torn one.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as picture:
            rgb = picture.convert("RGB")
    except _UNREADABLE as error:
        raise ScreenshotError(f"screenshot {name.hex()}: {error}") from error
    rgb.getexif()[ExifTags.Base.ImageID] = uuid.UUID(bytes=name)
    return rgb


def _nbytes(picture: Image.Image) -> int:
    return picture.width * picture.height * len(picture.getbands())


def _restore(name: bytes, source: Any) -> Image.Image:
    """What a pickled screenshot becomes in the process that gets it."""

    def encoded() -> bytes:
        if isinstance(source, bytes):
            return source
        import ray

        fetched: bytes = ray.get(source, timeout=FETCH_TIMEOUT_S)
        return fetched

    return _CACHE.get(name, encoded)


_CACHE = PictureCache(CACHE_BYTES)
