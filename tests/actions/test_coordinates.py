from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_gui.actions.coordinates import (
    OutOfFrameError,
    box_center,
    clamp,
    frame_from_grid,
    normalize_box,
    to_frame,
    to_pixel,
    to_screen,
)

SIZES = st.tuples(st.integers(28, 4096), st.integers(28, 4096))


def test_frame_is_what_the_grid_says() -> None:
    assert frame_from_grid([1, 78, 138]) == (1932, 1092)
    assert frame_from_grid((1, 52, 94), patch_size=16) == (1504, 832)


def test_processor_and_grid_agree() -> None:
    """The frame a real processor makes is the frame coordinates are read in, at several sizes."""
    # Here, because these imports take longer than all other tests of the module.
    import numpy
    from transformers import Qwen2VLImageProcessor

    processor = Qwen2VLImageProcessor(min_pixels=3136, max_pixels=2_116_800)
    for screen, frame in [
        ((1920, 1080), (1932, 1092)),
        ((320, 240), (308, 252)),
        ((1522, 1022), (1512, 1008)),
    ]:
        image = numpy.zeros((screen[1], screen[0], 3), dtype="uint8")
        grid = processor(images=[image], return_tensors="np")["image_grid_thw"][0]
        assert frame_from_grid(grid) == frame
        center = to_screen((frame[0] / 2, frame[1] / 2), frame, screen)
        assert center == pytest.approx((screen[0] / 2, screen[1] / 2))


def test_edges() -> None:
    assert to_screen((0, 0), (1932, 1092), (1920, 1080)) == (0, 0)
    assert to_screen((1932, 1092), (1932, 1092), (1920, 1080)) == (1919, 1079)
    for outside in [(-0.001, 0), (0, 1092.001), (2500, 1300), (float("nan"), 0), (float("inf"), 0)]:
        with pytest.raises(OutOfFrameError):
            to_screen(outside, (1932, 1092), (1920, 1080))


def test_rounding_is_half_to_even_and_stays_on_the_screen() -> None:
    assert [to_pixel(x + 0.5, 0)[0] for x in range(4)] == [0, 2, 2, 4]
    assert to_pixel(1919.6, -3, (1920, 1080)) == (1919, 0)


def test_x_is_scaled_by_width_and_y_by_height() -> None:
    box = normalize_box((348, 333, 928, 365), (1366, 768))
    assert box == pytest.approx((0.2548, 0.4336, 0.6794, 0.4753), abs=1e-4)
    assert box_center((100, 200, 300, 400)) == (200, 300)


@given(frame=SIZES, screen=SIZES, data=st.data())
def test_whole_numbers_of_the_frame_survive_the_round_trip(frame, screen, data) -> None:
    point = data.draw(st.tuples(st.integers(0, frame[0]), st.integers(0, frame[1])))
    pixel = to_screen(point, frame, screen)
    assert pixel == clamp(pixel, screen)
    assert to_screen(to_frame(pixel, frame, screen), frame, screen) == pixel


@given(frame=SIZES, screen=SIZES, data=st.data())
def test_a_pixel_moves_at_most_half_a_step_of_the_frame(frame, screen, data) -> None:
    pixel = data.draw(st.tuples(st.integers(0, screen[0] - 1), st.integers(0, screen[1] - 1)))
    back = to_screen(to_frame(pixel, frame, screen), frame, screen)
    for axis in (0, 1):
        assert abs(back[axis] - pixel[axis]) <= screen[axis] / frame[axis] / 2 + 1e-6
