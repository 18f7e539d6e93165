"""Coordinates: from the frame the model saw to the pixels of the screen, and back.

The frame is what the processor produced (:func:`frame_from_grid`). Recomputing the processor's resize rule
is how others end up clicking beside the target, so this module has no such rule.
"""

from __future__ import annotations

from collections.abc import Sequence

Size = tuple[int, int]
"""(width, height)."""

Point = tuple[float, float]

RELATIVE_FRAME: Size = (1000, 1000)
"""The frame of models that answer in thousandths of the screen."""


class OutOfFrameError(ValueError):
    """A coordinate lies outside the frame the model saw."""


def frame_from_grid(grid_thw: Sequence[int], patch_size: int = 14) -> Size:
    """Size of the picture the model saw, from one row ``(t, h, w)`` of ``image_grid_thw`` (in patches)."""
    _, rows, columns = (int(n) for n in grid_thw)
    return columns * patch_size, rows * patch_size


def scale_point(point: Point, frame: Size, screen: Size) -> Point:
    """``point`` of ``frame`` in pixels of ``screen``; neither rounded nor clamped."""
    return point[0] * screen[0] / frame[0], point[1] * screen[1] / frame[1]


def clamp(point: Point, screen: Size) -> Point:
    """``point`` moved onto the nearest pixel of the screen, if it isn't on one."""
    return min(max(point[0], 0.0), screen[0] - 1.0), min(max(point[1], 0.0), screen[1] - 1.0)


def to_screen(point: Point, frame: Size, screen: Size) -> Point:
    """Where a point the model named lies on the screen, in pixels, clamped to it.

    The far edges of the frame are in it: a model that says ``(width, height)`` means the last pixel.

    Raises:
        OutOfFrameError: the point isn't in ``[0, width] x [0, height]`` of the frame.
    """
    check_in_frame(point, frame)
    return clamp(scale_point(point, frame, screen), screen)


def check_in_frame(point: Point, frame: Size) -> None:
    """Raise OutOfFrameError unless ``point`` is in ``[0, width] x [0, height]``."""
    if not (0 <= point[0] <= frame[0] and 0 <= point[1] <= frame[1]):
        raise OutOfFrameError(f"({point[0]:g}, {point[1]:g}) is outside the {frame[0]}x{frame[1]} frame")


def to_frame(point: Point, frame: Size, screen: Size) -> tuple[int, int]:
    """The whole-numbered point of the frame that :func:`to_screen` maps nearest to ``point``.

    So a point that came from whole numbers of the frame comes back as itself, at the edges too.
    """
    x = _nearest(point[0], frame[0], screen[0])
    y = _nearest(point[1], frame[1], screen[1])
    return x, y


def _nearest(value: float, frame: int, screen: int) -> int:
    guess = round(value * frame / screen)
    candidates = [n for n in (guess, guess - 1, guess + 1) if 0 <= n <= frame]
    if not candidates:
        raise OutOfFrameError(f"pixel {value:g} is outside a screen of {screen} pixels")
    return min(candidates, key=lambda n: abs(min(n * screen / frame, screen - 1.0) - value))


def to_pixel(x: float, y: float, screen: Size | None = None) -> tuple[int, int]:
    """The pixel an executor clicks: rounded once, half to even, and kept on ``screen`` if one is given."""
    pixel = round(x), round(y)
    if screen is None:
        return pixel
    return min(max(pixel[0], 0), screen[0] - 1), min(max(pixel[1], 0), screen[1] - 1)


def box_center(box: Sequence[float]) -> Point:
    """Centre of ``(x1, y1, x2, y2)``."""
    x1, y1, x2, y2 = box
    return (x1 + x2) / 2, (y1 + y2) / 2


def normalize_box(box: Sequence[float], size: Size) -> tuple[float, ...]:
    """``(x, y, ...)`` as shares of ``size``: every x by the width, every y by the height."""
    return tuple(value / size[index % 2] for index, value in enumerate(box))
