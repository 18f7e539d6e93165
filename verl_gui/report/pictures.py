"""Screenshots for a web page: small enough to put many into one file."""

from __future__ import annotations

import base64
import io
import logging
from hashlib import blake2b

logger = logging.getLogger(__name__)

_KEEP_BELOW_BYTES = 40_000  # smaller pictures stay as they are
_MAX_WIDTH = 1280  # pixels; what a laptop shows
_QUALITY = 80


class PictureBook:
    """Pictures as data URLs, each once.

    Attributes:
        urls: data URL by name.
        size: bytes of all of them.
    """

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self.size = 0

    def add(self, png: bytes) -> str | None:
        """Take a picture in and return its name; None for an empty or broken one."""
        if not png:
            return None
        name = blake2b(png, digest_size=9).hexdigest()
        if name not in self.urls:
            try:
                kind, data = _shrink(png)
            except (OSError, ValueError, SyntaxError) as error:  # what Pillow raises on a broken file
                logger.warning("a screenshot cannot be shown: %s", error)
                return None
            self.urls[name] = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
            self.size += len(self.urls[name])
        return name


def _shrink(png: bytes) -> tuple[str, bytes]:
    """Image type and bytes, scaled down and recompressed when the picture is large."""
    from PIL import Image

    with Image.open(io.BytesIO(png), formats=["PNG"]) as picture:
        picture.load()
        if len(png) <= _KEEP_BELOW_BYTES:
            return "png", png
        small = picture.convert("RGB")
    if small.width > _MAX_WIDTH:
        small = small.resize(
            (_MAX_WIDTH, round(small.height * _MAX_WIDTH / small.width)), Image.Resampling.LANCZOS
        )
    data = io.BytesIO()
    small.save(data, "WEBP", quality=_QUALITY, method=2)
    return ("webp", data.getvalue()) if data.tell() < len(png) else ("png", png)
