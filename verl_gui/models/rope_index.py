"""Multimodal rotary positions (mRoPE) of Qwen2-VL and Qwen2.5-VL, without a loop over tokens.

A text token has one position on all three axes (time, height, width) and the next token has the next one. A
picture that starts at position ``p`` gives its token in frame ``t``, row ``h``, column ``w`` the position
``(p + t·interval, p + h, p + w)``; the text after it goes on at ``p + max(rows, columns)`` (Qwen2-VL,
arXiv 2409.12191, section 2.1; Qwen2.5-VL, arXiv 2502.13923, section 2.1.2, for the interval of videos).

Wherever transformers 5.9.0 gives positions, these are the same numbers. transformers raises when placeholders
and grids do not fit together. Here they are then matched in order, by what can have happened:

* the end of the sequence was cut off in a picture: its tokens have the positions they had before the cut;
* its beginning was cut off in a picture: the rest has that picture's last positions;
* pictures follow each other with nothing between them: each takes its own grid;
* anything else, above all a placeholder that the policy sampled: it is text, and the grid waits for its own.

A run of placeholders counts as a picture then only if it follows ``vision_start`` and has the length that the
grid asks for.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

_TEXT, _IMAGE, _VIDEO = 0, 1, 2  # as in transformers' mm_token_type_ids
RELEASED_TOKENS_PER_SECOND = 2
"""``vision_config.tokens_per_second`` of every released Qwen2.5-VL checkpoint."""


@dataclass(frozen=True)
class VisionTokenIds:
    """Ids of the tokens that stand for pictures (``image_token_id`` … of the model's configuration)."""

    image: int
    video: int
    vision_start: int


class _Medium(NamedTuple):
    """An image or a video: its frames, its rows and columns of tokens, and positions from frame to frame."""

    frames: int
    rows: int
    columns: int
    interval: float

    @property
    def tokens(self) -> int:
        return self.frames * self.rows * self.columns

    @property
    def extent(self) -> int:
        """By how much the text after it is further on than its first token."""
        return max(self.rows, self.columns)

    def positions(self) -> np.ndarray:
        """(3, tokens), starting at 0."""
        grid = np.empty((3, self.frames, self.rows, self.columns), np.int64)
        grid[0] = (np.arange(self.frames) * self.interval)[:, None, None]
        grid[1] = np.arange(self.rows)[:, None]
        grid[2] = np.arange(self.columns)
        return grid.reshape(3, -1)


class _Piece(NamedTuple):
    """``length`` tokens of text, or of ``medium`` from its token ``skip`` on."""

    length: int
    medium: _Medium | None = None
    skip: int = 0


class _Run(NamedTuple):
    """A longest stretch of tokens of one kind."""

    kind: int
    start: int
    stop: int


def rope_index(
    input_ids: Any,
    image_grid_thw: Any = None,
    video_grid_thw: Any = None,
    attention_mask: Any = None,
    *,
    ids: VisionTokenIds,
    merge_size: int = 2,
    second_per_grid_ts: Any = None,
    tokens_per_second: float | None = None,
    mm_token_type_ids: Any = None,
) -> torch.Tensor:
    """Positions of one sequence.

    Args:
        input_ids: (L,) token ids, placeholders expanded (one for each ``merge_size``² patches).
        image_grid_thw: (images, 3) frames, rows and columns of patches of each image, in order.
        video_grid_thw: (videos, 3) the same for videos.
        attention_mask: (L,) 0 on padding, on either side or in between; None: there is none.
        ids: the placeholders' ids.
        merge_size: patches that become one token, on each side (``vision_config.spatial_merge_size``).
        second_per_grid_ts: (videos,) seconds from frame to frame; transformers cuts them to whole seconds.
            Videos without a value have 1.
        tokens_per_second: positions a second of video takes (Qwen2.5-VL's ``vision_config``). None is
            Qwen2-VL, whose frames are one position apart, unless ``second_per_grid_ts`` is given:
            then it is :data:`RELEASED_TOKENS_PER_SECOND`.
        mm_token_type_ids: (L,) 0 text, 1 image, 2 video, if they are known; else read from ``input_ids``.

    Returns:
        LongTensor (3, L) on the device of ``input_ids``: time, height, width; 0 on padding.

    Raises:
        ValueError: an argument has the wrong shape, or a grid a negative number.
    """
    return _compute(
        3,
        input_ids,
        image_grid_thw,
        video_grid_thw,
        attention_mask,
        ids=ids,
        merge_size=merge_size,
        second_per_grid_ts=second_per_grid_ts,
        tokens_per_second=tokens_per_second,
        mm_token_type_ids=mm_token_type_ids,
    )


def engine_position_ids(
    input_ids: Any,
    image_grid_thw: Any = None,
    video_grid_thw: Any = None,
    attention_mask: Any = None,
    **options: Any,
) -> torch.Tensor:
    """The four rows that verl's engine wants: where the token is in the text, then :func:`rope_index`.

    Flash attention finds the borders of packed sequences in the first row. Arguments are those of
    :func:`rope_index`.

    Returns:
        LongTensor (4, L), of text-only sequences too; 0 on padding.
    """
    return _compute(4, input_ids, image_grid_thw, video_grid_thw, attention_mask, **options)


def _compute(
    rows: int,
    input_ids: Any,
    image_grid_thw: Any,
    video_grid_thw: Any,
    attention_mask: Any,
    *,
    ids: VisionTokenIds,
    merge_size: int = 2,
    second_per_grid_ts: Any = None,
    tokens_per_second: float | None = None,
    mm_token_type_ids: Any = None,
) -> torch.Tensor:
    """(rows, L): the last three rows are :func:`rope_index`, a fourth one above them is the text's."""
    tokens, device = _vector(input_ids, "input_ids")
    media = _media(image_grid_thw, video_grid_thw, merge_size, second_per_grid_ts, tokens_per_second)
    kinds = (
        _kinds(tokens, ids)
        if mm_token_type_ids is None
        else _vector(mm_token_type_ids, "mm_token_type_ids", length=len(tokens))[0]
    )
    where: Any = slice(None)
    positions = np.empty((rows, len(tokens)), np.int64)
    if attention_mask is not None:
        mask = _vector(attention_mask, "attention_mask", length=len(tokens))[0] != 0
        if not mask.all():
            positions[:] = 0
            where = _slice_or_indices(np.flatnonzero(mask))
    target = positions[:, where]  # of a slice a view, of indices a copy
    target[:-3] = np.arange(target.shape[1])
    _place(target[-3:], _plan(tokens[where], kinds[where], media, ids.vision_start))
    positions[:, where] = target
    return torch.from_numpy(positions).to(device)


def _slice_or_indices(indices: np.ndarray) -> Any:
    """The slice that picks the same entries, if there is one: padding is at the ends as a rule."""
    if not len(indices):
        return slice(0)
    whole = slice(int(indices[0]), int(indices[-1]) + 1)
    return whole if whole.stop - whole.start == len(indices) else indices


class RopeIndexBuilder:
    """Positions of a sequence that grows turn by turn; together they equal :func:`rope_index` of the whole.

    Each part brings the grids of its own pictures, whole ones: between two parts there is no picture.

    Args:
        ids, merge_size, tokens_per_second: as for :func:`rope_index`.

    Example:
        >>> builder = RopeIndexBuilder(ids=VisionTokenIds(image=8, video=9, vision_start=7))
        >>> builder.append([1, 7, 8, 2], [[1, 2, 2]])[0].tolist()
        [0, 1, 2, 3]
        >>> builder.append([3, 4])[0].tolist()
        [4, 5]
    """

    def __init__(
        self, *, ids: VisionTokenIds, merge_size: int = 2, tokens_per_second: float | None = None
    ) -> None:
        self.next_position = 0
        """Position of the text token that would come next."""
        self._ids = ids
        self._merge_size = merge_size
        self._tokens_per_second = tokens_per_second
        self._last: int | None = None
        self._last_kind = _TEXT
        self._cut = False

    def append(
        self,
        input_ids: Any,
        image_grid_thw: Any = None,
        video_grid_thw: Any = None,
        *,
        second_per_grid_ts: Any = None,
    ) -> torch.Tensor:
        """Add tokens.

        Args:
            input_ids: (n,) the new tokens, unpadded.
            image_grid_thw, video_grid_thw, second_per_grid_ts: of the pictures among them.

        Returns:
            LongTensor (3, n).

        Raises:
            ValueError: as :func:`rope_index`, or a picture lies across the border of two parts.
        """
        tokens, device = _vector(input_ids, "input_ids")
        media = _media(
            image_grid_thw, video_grid_thw, self._merge_size, second_per_grid_ts, self._tokens_per_second
        )
        positions = np.empty((3, len(tokens)), np.int64)
        if not len(tokens):
            return torch.from_numpy(positions).to(device)
        kinds = _kinds(tokens, self._ids)
        if self._cut or kinds[0] == self._last_kind != _TEXT:
            raise ValueError(
                "a picture lies across the border of two parts of the sequence: append its placeholders and "
                "its grid together"
            )
        pieces = _plan(tokens, kinds, media, self._ids.vision_start, before=self._last)
        self.next_position = _place(positions, pieces, start=self.next_position)
        last = pieces[-1]
        self._cut = last.medium is not None and last.skip + last.length < last.medium.tokens
        self._last, self._last_kind = int(tokens[-1]), int(kinds[-1])
        return torch.from_numpy(positions).to(device)


def _plan(
    tokens: np.ndarray,
    kinds: np.ndarray,
    media: dict[int, list[_Medium]],
    vision_start: int,
    before: int | None = None,
) -> list[_Piece]:
    """What the sequence consists of. ``before``: the token in front of it, if there was one."""
    runs = _runs(kinds)
    pieces = _as_transformers(runs, media)
    total = sum(piece.length for piece in pieces) if pieces is not None else -1
    # A single position in all is no mistake to transformers either: torch spreads it over every token.
    if pieces is not None and (total == len(tokens) or (total == 1 and before is None)):
        return pieces
    return _as_it_must_have_been(runs, tokens, media, vision_start, before)


def _as_transformers(runs: Iterable[_Run], media: dict[int, list[_Medium]]) -> list[_Piece] | None:
    """Every run of placeholders is the next picture, whole; None when there are not enough of them."""
    waiting = {kind: iter(of_kind) for kind, of_kind in media.items()}
    pieces = []
    for run in runs:
        if run.kind == _TEXT:
            pieces.append(_Piece(run.stop - run.start))
            continue
        medium = next(waiting[run.kind], None)
        if medium is None:
            return None
        pieces.append(_Piece(medium.tokens, medium))
    return pieces


def _as_it_must_have_been(
    runs: Sequence[_Run],
    tokens: np.ndarray,
    media: dict[int, list[_Medium]],
    vision_start: int,
    before: int | None,
) -> list[_Piece]:
    """Pieces that cover every token, where placeholders and grids do not fit; see the module."""
    waiting = {kind: deque(of_kind) for kind, of_kind in media.items()}
    pieces: list[_Piece] = []
    previous_kind = _TEXT
    for run in runs:
        in_front = int(tokens[run.start - 1]) if run.start else before
        found = None
        if run.kind != _TEXT and (previous_kind != _TEXT or in_front in (None, vision_start)):
            found = _pictures(
                waiting[run.kind],
                run.stop - run.start,
                head=in_front is None,
                tail=run.stop == len(tokens),
            )
        if found is None:
            pieces.append(_Piece(run.stop - run.start))
        else:
            pieces += found
            for _ in found:
                waiting[run.kind].popleft()
        previous_kind = run.kind
    return pieces


def _pictures(waiting: Iterable[_Medium], length: int, *, head: bool, tail: bool) -> list[_Piece] | None:
    """The next pictures if they make up a run of ``length`` placeholders, else None.

    Args:
        head: nothing comes before the run, so that it may be the end of a picture.
        tail: nothing comes after it, so that its last picture may be cut off.
    """
    pieces: list[_Piece] = []
    for medium in waiting:
        if not length:
            break
        if medium.tokens <= length:
            pieces.append(_Piece(medium.tokens, medium))
        elif tail:
            pieces.append(_Piece(length, medium))
        elif head and not pieces:
            pieces.append(_Piece(length, medium, skip=medium.tokens - length))
        else:
            return None
        length -= pieces[-1].length
    return None if length else pieces


def _place(positions: np.ndarray, pieces: Sequence[_Piece], start: int = 0) -> int:
    """Write the positions of ``pieces`` into (3, L), from ``start`` on; returns the next position."""
    total = sum(piece.length for piece in pieces)
    if total != positions.shape[1]:  # one position for all tokens, see _plan
        single = np.empty((3, total), np.int64)
        start = _place(single, pieces, start)
        positions[:] = single
        return start
    known: dict[_Medium, np.ndarray] = {}
    at, position = 0, start
    for length, medium, skip in pieces:
        target = positions[:, at : at + length]
        at += length
        if medium is None:
            target[:] = np.arange(position, position + length)
            position += length
            continue
        if medium not in known:
            known[medium] = medium.positions()
        np.add(known[medium][:, skip : skip + length], position, out=target)
        position += medium.extent
    return position


def _runs(kinds: np.ndarray) -> list[_Run]:
    if not len(kinds):
        return []
    borders = [0, *(np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist(), len(kinds)]
    return [_Run(int(kinds[start]), start, stop) for start, stop in itertools.pairwise(borders)]


def _kinds(tokens: np.ndarray, ids: VisionTokenIds) -> np.ndarray:
    """(L,) text, image or video."""
    kinds = (tokens == ids.image).view(np.int8)  # True is 1, which is _IMAGE
    kinds[tokens == ids.video] = _VIDEO
    return kinds


def _media(
    image_grid_thw: Any,
    video_grid_thw: Any,
    merge_size: int,
    second_per_grid_ts: Any,
    tokens_per_second: float | None,
) -> dict[int, list[_Medium]]:
    seconds = [] if second_per_grid_ts is None else torch.as_tensor(second_per_grid_ts).tolist()
    if tokens_per_second is None and seconds:
        tokens_per_second = RELEASED_TOKENS_PER_SECOND
    videos = []
    for index, grid in enumerate(_grids(video_grid_thw, "video_grid_thw", merge_size)):
        whole_seconds = int(seconds[index]) if index < len(seconds) else 1
        videos.append(_Medium(*grid, 1 if tokens_per_second is None else tokens_per_second * whole_seconds))
    images = [_Medium(*grid, 1) for grid in _grids(image_grid_thw, "image_grid_thw", merge_size)]
    return {_IMAGE: images, _VIDEO: videos}


def _grids(grid_thw: Any, name: str, merge_size: int) -> list[tuple[int, int, int]]:
    """Frames, rows and columns of tokens."""
    if grid_thw is None or len(grid_thw) == 0:
        return []
    grid = torch.as_tensor(grid_thw)
    if grid.ndim != 2 or grid.shape[1] != 3:
        raise ValueError(f"{name}: expected (n, 3) frames, rows, columns; got {tuple(grid.shape)}")
    rows = grid.tolist()
    if any(number < 0 for row in rows for number in row):
        raise ValueError(f"{name}: negative number in {rows}")
    return [(t, h // merge_size, w // merge_size) for t, h, w in rows]


def _vector(values: Any, name: str, *, length: int | None = None) -> tuple[np.ndarray, torch.device]:
    tensor = torch.as_tensor(values)
    if tensor.ndim != 1:
        raise ValueError(f"{name}: expected one sequence (L,), got {tuple(tensor.shape)}")
    if length is not None and len(tensor) != length:
        raise ValueError(f"{name} has {len(tensor)} entries for {length} tokens")
    return tensor.detach().cpu().numpy(), tensor.device
