"""Training rows that carry screenshots as encoded bytes, and the pixels made of them where they are needed.

verl stores the ``pixel_values`` of every trajectory: 50 MB for a 1080p screenshot, which is 200 kB as PNG. A
row of ours holds the bytes instead, each picture once, and says how to process them. They are plain tensors,
so whatever stores or moves rows (TransferQueue, replay, checkpoints) needs to know nothing of them:

======================  =================================================================================
key                     what
======================  =================================================================================
``image_grid_thw``      (n, 3) as verl's
``images_seqlens``      (n,) as verl's
``encoded_images``      (bytes,) uint8: the different pictures, end to end
``encoded_spans``       (n, 2) int64: where picture i begins in there, and how many bytes it has
``encoded_recipe``      (bytes,) uint8: JSON, the image processor and what it is called with
======================  =================================================================================

:func:`with_pixels` gives what verl's row would have been, bit by bit.
"""

from __future__ import annotations

import functools
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any

import torch
import transformers
from transformers.image_utils import SizeDict

from verl_gui.models.picture_grid import picture_grid
from verl_gui.models.screenshot import decode

IMAGES, SPANS, RECIPE = "encoded_images", "encoded_spans", "encoded_recipe"
PROCESSORS = ("Qwen2VLImageProcessor",)
"""Classes of image processors that a row may name. Rows may come from a file of somebody else."""

CACHE_VARIABLE = "VERL_GUI_PICTURE_CACHE_MB"
"""Environment variable: megabytes of resized screenshots (uint8) that a training process keeps."""
DEFAULT_CACHE_MB = 2048


class EncodedRowError(ValueError):
    """A row whose pictures cannot be made."""


def encode(
    images: Sequence[bytes],
    sizes: Sequence[tuple[int, int]],
    processor: Any,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """The ``multi_modal_inputs`` of a row, without decoding a picture.

    Args:
        images: encoded screenshots in the order of their placeholders; equal ones are stored once.
        sizes: width and height of each in pixels.
        processor: the model's, of Qwen2-VL or Qwen2.5-VL.
        settings: what it is called with (verl's ``mm_processor_kwargs``).

    Raises:
        EncodedRowError: the processor is not one of :data:`PROCESSORS`.
    """
    image_processor = processor.image_processor
    name = type(image_processor).__name__
    if name not in PROCESSORS:
        raise EncodedRowError(
            f"screenshots of {name} cannot travel encoded ({', '.join(PROCESSORS)} can); remove "
            "actor_rollout_ref.rollout.agent.agent_loop_manager_class to ship pixels"
        )
    if not images:
        return {}
    grids = torch.tensor([picture_grid(size, image_processor, settings) for size in sizes])
    begin: dict[bytes, int] = {}
    end, spans = 0, []
    for image in images:
        if image not in begin:
            begin[image], end = end, end + len(image)
        spans.append((begin[image], len(image)))
    recipe = {"class": name, "init": image_processor.to_dict(), "call": dict(settings or {})}
    text = json.dumps(recipe, sort_keys=True, separators=(",", ":"))
    return {
        "image_grid_thw": grids,
        "images_seqlens": torch.repeat_interleave(grids[:, 1] * grids[:, 2], grids[:, 0]),
        IMAGES: torch.frombuffer(bytearray(b"".join(begin)), dtype=torch.uint8),
        SPANS: torch.tensor(spans),
        RECIPE: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8),
    }


def with_pixels(rows: Iterable[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    """The rows of a micro-batch with ``pixel_values`` in the place of encoded pictures; others as they are.

    Every picture is decoded and resized once, in threads, and kept for the next passes over it, in this
    micro-batch or a later one.

    Raises:
        EncodedRowError: a picture cannot be decoded; says which, of which row.
    """
    plain = [dict(row or {}) for row in rows]
    wanted: dict[tuple[bytes, bytes], bytes] = {}
    pictures: dict[int, list[tuple[bytes, bytes]]] = {}
    for number, row in enumerate(plain):
        if IMAGES not in row:
            continue
        data, recipe = row[IMAGES].numpy().tobytes(), row[RECIPE].numpy().tobytes()
        for begin, length in row[SPANS].tolist():
            image = data[begin : begin + length]
            key = (blake2b(image, digest_size=16).digest(), recipe)
            pictures.setdefault(number, []).append(key)
            wanted[key] = image
    resized = _CACHE.get_all(wanted, pictures)
    for number, keys in pictures.items():
        row = plain[number]
        recipe = json.loads(row.pop(RECIPE).numpy().tobytes())
        del row[IMAGES], row[SPANS]
        call = {**recipe["call"], "do_resize": False, "return_tensors": "pt"}
        made = _image_processor(keys[0][1])(images=[resized[key] for key in keys], **call)
        if not torch.equal(made["image_grid_thw"], row["image_grid_thw"]):
            raise EncodedRowError(
                f"row {number}: grids {row['image_grid_thw'].tolist()} were laid out, the pictures have "
                f"{made['image_grid_thw'].tolist()}"
            )
        row["pixel_values"] = made["pixel_values"]
    return plain


class _ResizedPictures:
    """Screenshots as the processor resizes them: (3, H, W) uint8, an eighth of their pixel values."""

    def __init__(self, most_bytes: int, threads: int) -> None:
        self._most, self._held = most_bytes, 0
        self._kept: OrderedDict[tuple[bytes, bytes], torch.Tensor] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pictures")
        self.made = 0  # pictures decoded and resized so far

    def get_all(
        self, wanted: Mapping[tuple[bytes, bytes], bytes], rows: Mapping[int, Sequence[tuple[bytes, bytes]]]
    ) -> dict[tuple[bytes, bytes], torch.Tensor]:
        with self._lock:
            found = {key: self._kept[key] for key in wanted if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
        missing = [key for key in wanted if key not in found]
        tasks = [self._threads.submit(_resize, wanted[key], *key) for key in missing]
        for key, task in zip(missing, tasks, strict=True):
            try:
                found[key] = task.result()
            except ValueError as error:
                number = next(number for number, keys in rows.items() if key in keys)
                raise EncodedRowError(f"row {number}: {error}") from error
        with self._lock:
            self.made += len(missing)
            for key in missing:
                self._held += 0 if key in self._kept else found[key].nbytes
                self._kept[key] = found[key]
            while self._held > self._most and self._kept:
                self._held -= self._kept.popitem(last=False)[1].nbytes
        return found


def _resize(image: bytes, name: bytes, recipe: bytes) -> torch.Tensor:
    """Decode and resize as the processor would."""
    from torchvision.transforms.v2.functional import pil_to_tensor

    picture = decode(image, name)
    pixels: torch.Tensor = pil_to_tensor(picture)
    processor = _image_processor(recipe)
    call = json.loads(recipe)["call"]
    if not call.get("do_resize", processor.do_resize):
        return pixels
    _, rows, columns = picture_grid(picture.size, processor, call)
    size = SizeDict(height=rows * processor.patch_size, width=columns * processor.patch_size)
    resample = call.get("resample", processor.resample)
    resized: torch.Tensor = processor.resize(image=pixels[None], size=size, resample=resample)
    return resized[0]


@functools.lru_cache(maxsize=16)
def _image_processor(recipe: bytes) -> Any:
    """The image processor that a row names.

    Raises:
        EncodedRowError: it names another class than :data:`PROCESSORS`.
    """
    parts = json.loads(recipe)
    if parts["class"] not in PROCESSORS:
        raise EncodedRowError(
            f"a row names the image processor {parts['class']!r}, which is not among {PROCESSORS}"
        )
    init = {key: value for key, value in parts["init"].items() if key != "image_processor_type"}
    return getattr(transformers, parts["class"])(**init)


_CACHE = _ResizedPictures(
    int(float(os.environ.get(CACHE_VARIABLE, DEFAULT_CACHE_MB)) * 1e6), min(8, os.cpu_count() or 1)
)
