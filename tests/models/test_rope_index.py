"""The positions are transformers' wherever it gives any, and sensible where it raises."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import IDS, MODELS, TOKENS_PER_SECOND, cases, options, tokens, transformers_rope_index

from verl_gui.models.rope_index import RopeIndexBuilder, VisionTokenIds, engine_position_ids, rope_index


@cases("rope")
@pytest.mark.parametrize("model", MODELS)
def test_known_positions(case, model):
    pad = case.get("pad", 0)
    ids = torch.cat([torch.zeros(pad, dtype=torch.long), tokens(case["layout"])])
    mask = torch.cat([torch.zeros(pad, dtype=torch.long), torch.ones(len(ids) - pad, dtype=torch.long)])
    positions = rope_index(ids, case["grids"], None, mask, **options(model))
    assert positions[:, pad:].tolist() == [case["t"], case["h"], case["w"]]
    assert ((positions >= 0) & (positions < len(ids))).all()
    if "delta" in case:
        assert int(positions.max()) + 1 - (len(ids) - pad) == case["delta"]


@cases("shape")
def test_the_engine_gets_four_rows(case):
    picture = " VS I*4 VE b" if case["images"] else ""
    ids = tokens("a b" + picture)
    for pad in (0, 3):
        padded = torch.cat([torch.zeros(pad, dtype=torch.long), ids])
        mask = (torch.arange(len(padded)) >= pad).long()
        rows = engine_position_ids(padded, [[1, 4, 4]] * case["images"], None, mask, ids=IDS)
        assert list(rows.shape) == [4, len(padded)] and rows.dtype == torch.long
        assert rows[0, pad:].tolist() == list(range(len(ids)))
        assert torch.equal(rows[1:], rope_index(padded, [[1, 4, 4]] * case["images"], None, mask, ids=IDS))
        if case.get("rows_equal"):
            assert (rows == rows[0]).all()


GRIDS = st.tuples(st.just(1), st.integers(1, 4), st.integers(1, 4))
VIDEO_GRIDS = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
WORDS = st.lists(st.sampled_from(["a", "b", "VE"]), max_size=4)


@st.composite
def conversations(draw, marked=False):
    """(words, image grids, video grids) of each part: text and perhaps one picture with all its tokens.

    ``marked``: a vision_start is in front of every picture.
    """
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        words, kind = draw(WORDS), draw(st.sampled_from(["none", "image", "video"]))
        if kind == "none":
            parts.append((words, [], []))
            continue
        t, h, w = draw(GRIDS if kind == "image" else VIDEO_GRIDS)
        grid = [t, 2 * h + draw(st.integers(0, 1)), 2 * w]  # an odd number of rows is rounded down
        marks = ["VS"] if marked or draw(st.booleans()) or not words else []
        words = [*words, *marks, f"{'I' if kind == 'image' else 'V'}*{t * h * w}", "VE"]
        parts.append((words, [grid] if kind == "image" else [], [grid] if kind == "video" else []))
    return parts


def joined(parts):
    words, images, videos = ([x for part in parts for x in part[i]] for i in range(3))
    return tokens(words), images, videos


def grid_tensor(grids):
    return torch.tensor(grids) if grids else None


@pytest.mark.parametrize("model", MODELS)
@given(parts=conversations(), data=st.data())
@settings(max_examples=150, deadline=None)
def test_equals_transformers(model, parts, data):
    ids, images, videos = joined(parts)
    seconds = None
    if model == "qwen2_5_vl":  # Qwen2-VL knows no seconds
        values = st.sampled_from([0.0, 0.5, 1.0, 1.9, 3])
        seconds = data.draw(st.none() | st.lists(values, min_size=len(videos), max_size=6))
    mask = None
    if data.draw(st.booleans()):
        left, right = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
        ids = torch.cat([torch.full((left,), IDS.image), ids, torch.full((right,), 9)])
        mask = (torch.arange(len(ids)) >= left) & (torch.arange(len(ids)) < len(ids) - right)
        if data.draw(st.booleans()):  # padding inside text does not break any picture
            text = (ids != IDS.image) & (ids != IDS.video)
            holes = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
            mask &= ~(text & torch.tensor(holes, dtype=torch.bool))
        mask = mask.long()
    if not len(ids) or (mask is not None and not mask.any()):
        return
    arguments = (ids, grid_tensor(images), grid_tensor(videos), mask)
    try:
        expected = transformers_rope_index(model, *arguments, second_per_grid_ts=seconds)
    except (RuntimeError, StopIteration):
        expected = None  # a hole has joined two pictures
    got = rope_index(*arguments, **options(model, second_per_grid_ts=seconds))
    assert got.shape == (3, len(ids))
    assert expected is None or torch.equal(got, expected)


@pytest.mark.parametrize("model", MODELS)
@given(
    words=st.lists(st.sampled_from(["a", "VS", "VE", "I", "I", "I*2", "V", "V*4"]), min_size=1, max_size=12),
    images=st.lists(st.sampled_from([[1, 2, 2], [1, 2, 4], [1, 4, 4]]), max_size=4),
    videos=st.lists(st.sampled_from([[1, 2, 2], [2, 2, 2], [2, 2, 4]]), max_size=3),
)
@settings(max_examples=150, deadline=None)
def test_any_tokens_with_any_grids(model, words, images, videos):
    ids = tokens(words)
    arguments = (ids, grid_tensor(images), grid_tensor(videos))
    got = rope_index(*arguments, **options(model))
    try:
        expected = transformers_rope_index(model, *arguments)
    except (RuntimeError, StopIteration, TypeError):
        # Defined all the same: every token has a position, and none is further on than its place allows
        # (but in a picture whose beginning is missing).
        assert got.shape == (3, len(ids)) and (got >= 0).all()
        if ids[0] not in (IDS.image, IDS.video):
            assert (got[1:].max(0).values <= torch.arange(len(ids))).all()
    else:
        assert torch.equal(got, expected)


@given(parts=conversations(marked=True), cut=st.integers(0, 60))
@settings(max_examples=150, deadline=None)
def test_a_truncated_tail_keeps_its_positions(parts, cut):
    ids, images, videos = joined([(["a"], [], []), *parts])
    whole = rope_index(ids, images, videos, **options("qwen2_5_vl"))
    if cut < len(ids):
        kept = len(ids) - cut
        got = rope_index(ids[:kept], images, videos, **options("qwen2_5_vl"))
        assert torch.equal(got, whole[:, :kept])


@given(parts=conversations(marked=True), sampled=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_appended_turns_equal_the_whole(parts, sampled):
    # After the first part the policy samples placeholders that stand for nothing.
    parts = [(["a", *parts[0][0], "b"], *parts[0][1:]), ([f"I*{sampled}", "c"], [], []), *parts[1:]]
    builder = RopeIndexBuilder(ids=IDS, tokens_per_second=TOKENS_PER_SECOND)
    rows = [builder.append(tokens(words), images, videos) for words, images, videos in parts]
    ids, images, videos = joined(parts)
    whole = rope_index(ids, images, videos, **options("qwen2_5_vl"))
    assert torch.equal(torch.cat(rows, dim=1), whole)
    assert builder.append(tokens("x"))[:, 0].tolist() == [builder.next_position - 1] * 3


@pytest.mark.parametrize(
    ("layout", "grids", "width_row"),
    [
        ("a VS I*4 VE b I c", [[1, 4, 4]], [0, 1, 2, 3, 2, 3, 4, 5, 6, 7]),
        ("a I b VS I*4 VE", [[1, 4, 4]], [0, 1, 2, 3, 4, 5, 4, 5, 6]),
        ("a VS I b VS I*4 VE", [[1, 4, 4]], [0, 1, 2, 3, 4, 5, 6, 5, 6, 7]),
        ("a I*3 V b", [], [0, 1, 2, 3, 4, 5]),
        ("a VS I*8 VE", [[1, 4, 4], [1, 4, 4]], [0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6]),
        ("I*2 VE VS I*4", [[1, 4, 4], [1, 4, 4]], [0, 1, 2, 3, 4, 5, 4, 5]),
    ],
    ids=["after", "before", "with its mark", "no picture at all", "two in a row", "cut at the front"],
)
def test_placeholders_without_a_picture_of_theirs(layout, grids, width_row):
    ids = tokens(layout)
    with pytest.raises((RuntimeError, StopIteration, TypeError)):
        transformers_rope_index("qwen2_vl", ids, grid_tensor(grids))
    assert rope_index(ids, grids, ids=IDS)[2].tolist() == width_row


def test_a_picture_may_not_lie_across_two_parts():
    builder = RopeIndexBuilder(ids=IDS)
    builder.append(tokens("a VS I*2"), [[1, 4, 4]])
    with pytest.raises(ValueError, match="append its placeholders and its grid together"):
        builder.append(tokens("I*2 VE"))
    builder = RopeIndexBuilder(ids=IDS)
    builder.append(tokens("a VS I*2"), [[1, 4, 4]])
    with pytest.raises(ValueError, match="lies across the border"):
        builder.append(tokens("b"))


def test_nothing_gives_nothing():
    assert rope_index([], ids=IDS).shape == (3, 0)
    assert rope_index([5, 5], None, None, [0, 0], ids=IDS).tolist() == [[0, 0]] * 3
    assert RopeIndexBuilder(ids=IDS).append([]).shape == (3, 0)


def test_without_a_rate_the_released_one_is_meant():
    ids, seconds = tokens("a VS V*2 VE"), [3]
    positions = rope_index(ids, None, [[2, 2, 2]], ids=IDS, second_per_grid_ts=seconds)
    assert positions[0].tolist() == [0, 1, 2, 2 + 2 * 3, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1, 2]],), r"input_ids: expected one sequence \(L,\), got \(1, 2\)"),
        (([1, 2], [[4, 4]]), r"image_grid_thw: expected \(n, 3\).*got \(1, 2\)"),
        (([1, 2], None, [[1, -4, 4]]), r"video_grid_thw: negative number in \[\[1, -4, 4\]\]"),
        (([1, 2], None, None, [1]), "attention_mask has 1 entries for 2 tokens"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        rope_index(*arguments, ids=VisionTokenIds(8, 9, 7))
