"""An episode as one picture: its screenshots side by side, what was done drawn on them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from verl_gui.rollout.trajectory import Trajectory, TrajectoryStep

_GAP = 6
_LINE = 13
_CAPTION_LINES = 3
_COLOUR = (230, 30, 60)
_HALO = (255, 255, 255)


def filmstrip(trajectory: Trajectory, *, height: int = 224, most: int = 8) -> Image.Image:
    """Draw an episode.

    Args:
        trajectory: with its screenshots.
        height: of a screenshot in the strip, pixels.
        most: turns shown; of a longer episode the first and the last ones.

    Raises:
        ValueError: it has no screenshots, or one that is no picture.
    """
    shown = [step for step in trajectory.steps if step.screenshot]
    if not shown:
        raise ValueError(f"the record of {trajectory.task_id} has no screenshots")
    if len(shown) > most:
        shown = [*shown[: most // 2], *shown[len(shown) - (most - most // 2) :]]
    frames = [_frame(step, trajectory.screen, height) for step in shown]
    title = f"{trajectory.task_id}: {trajectory.instruction}  ->  {_verdict(trajectory)}"
    width = sum(frame.width + _GAP for frame in frames) + _GAP
    strip = Image.new("RGB", (width, frames[0].height + _LINE + 2 * _GAP), _HALO)
    x = _GAP
    for frame in frames:
        strip.paste(frame, (x, _LINE + _GAP))
        x += frame.width + _GAP
    _write(ImageDraw.Draw(strip), (_GAP, 2), title, width - 2 * _GAP)
    return strip


def _verdict(trajectory: Trajectory) -> str:
    if trajectory.score is None:
        return f"no verdict ({trajectory.env_failure})"
    return f"score {trajectory.score:g}, {trajectory.outcome}"


def _frame(step: TrajectoryStep, screen: tuple[int, int], height: int) -> Image.Image:
    try:
        with Image.open(io.BytesIO(step.screenshot)) as opened:
            picture = opened.convert("RGB")
    except (OSError, SyntaxError) as error:  # what Pillow raises on a broken file
        raise ValueError(f"a screenshot cannot be read: {error}") from error
    scale = height / picture.height
    picture = picture.resize((max(1, round(picture.width * scale)), height))
    draw = ImageDraw.Draw(picture)
    for action in step.actions:
        _mark(draw, action, picture.width / screen[0], picture.height / screen[1])
    frame = Image.new("RGB", (picture.width, height + _CAPTION_LINES * _LINE), _HALO)
    frame.paste(picture, (0, 0))
    caption = step.error or "; ".join(_words(action) for action in step.actions)
    draw = ImageDraw.Draw(frame)
    per_line = max(1, int(picture.width / 6))
    for line in range(_CAPTION_LINES):
        piece = caption[line * per_line : (line + 1) * per_line]
        _write(draw, (0, height + line * _LINE), piece, picture.width)
    return frame


def _mark(draw: ImageDraw.ImageDraw, action: Mapping[str, Any], across: float, down: float) -> None:
    """A ring where the pointer went; a line along a drag."""
    if action.get("x") is None:
        return
    x, y = action["x"] * across, action["y"] * down
    if action.get("end_x") is not None:
        end = (action["end_x"] * across, action["end_y"] * down)
        draw.line(((x, y), end), fill=_HALO, width=4)
        draw.line(((x, y), end), fill=_COLOUR, width=2)
    for colour, width, radius in ((_HALO, 4, 8), (_COLOUR, 2, 7)):
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), outline=colour, width=width)


def _words(action: Mapping[str, Any]) -> str:
    words = [str(getattr(action["type"], "value", action["type"]))]
    if action.get("x") is not None:
        words.append(f"{action['x']:.0f},{action['y']:.0f}")
    words += [repr(action[key]) for key in ("text", "keys", "direction") if action.get(key)]
    return " ".join(words)


def _write(draw: ImageDraw.ImageDraw, at: tuple[int, int], text: str, width: int) -> None:
    """One line, cut to ``width`` pixels; what the built-in font lacks becomes a question mark."""
    plain = text.replace("\n", " ").encode("latin-1", "replace").decode("latin-1")
    font = ImageFont.load_default(11)
    while plain and draw.textlength(plain, font=font) > width:
        plain = plain[:-1]
    draw.text(at, plain, fill=(20, 20, 20), font=font)
