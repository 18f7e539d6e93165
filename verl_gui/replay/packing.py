"""A whole training row as bytes and back, bit by bit, whatever fields it has.

Tensors of every dtype, arrays, encoded screenshots and plain values are kept; nothing is pickled, so a file
of records from somebody else can do no harm.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

UNKNOWN_LOG_PROBS = "log_probs_are_unknown"
"""Set in a record's ``extra_fields``: whoever played it had no log-probs, those in it mean nothing."""

_PROBE = 1 << 15
"""Bytes of a large value that are compressed to see whether it pays."""


@dataclass(frozen=True)
class PackedRecord:
    """A record that no later edit of its tensors can change.

    ``tree`` is JSON in which every tensor and byte string is a number into ``blobs``.
    """

    tree: str
    blobs: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it occupies."""
        return len(self.tree.encode()) + sum(len(blob) for blob in self.blobs)


def pack(record: Any) -> PackedRecord:
    """Copy a record into bytes, compressed where that saves something.

    Raises:
        TypeError: it holds a value of another type than tensors, arrays, bytes, numbers, strings, lists,
            tuples and mappings; names the type.
    """
    blobs: list[bytes] = []

    def blob(data: bytes) -> list[Any]:
        # Encoded screenshots are most of a row and cannot be compressed again; a look at their middle tells.
        middle = data[len(data) // 2 :][:_PROBE]
        hopeless = len(data) > _PROBE and len(zlib.compress(middle, 1)) > 0.9 * len(middle)
        small = data if hopeless else zlib.compress(data, 1)
        blobs.append(small if len(small) < len(data) else data)
        return [len(blobs) - 1, len(small) < len(data)]

    def node(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            # np.float64 is a float, np.str_ a str: json writes both.
            return ["value", value]
        if isinstance(value, np.generic):
            return node(value.item())
        if isinstance(value, torch.Tensor):
            flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            name = str(value.dtype).removeprefix("torch.")
            return ["tensor", name, list(value.shape), *blob(flat.numpy().tobytes())]
        if isinstance(value, np.ndarray):
            if value.dtype == object:
                return ["objects", list(value.shape), [node(item) for item in value.reshape(-1)]]
            return ["array", value.dtype.str, list(value.shape), *blob(value.tobytes())]
        if isinstance(value, bytes | bytearray):
            return ["bytes", *blob(bytes(value))]
        if isinstance(value, list | tuple):
            return [type(value).__name__ if type(value) in (list, tuple) else "list", [*map(node, value)]]
        if isinstance(value, dict):
            return ["dict", [[node(key), node(item)] for key, item in value.items()]]
        raise TypeError(f"a stored record cannot hold {type(value).__name__}: {value!r:.80}")

    tree = json.dumps(node(record), separators=(",", ":"))
    return PackedRecord(tree, tuple(blobs))


def unpack(packed: PackedRecord) -> Any:
    """A fresh copy of the record; the caller may edit it."""

    def data(index: int, compressed: bool) -> bytes:
        return zlib.decompress(packed.blobs[index]) if compressed else packed.blobs[index]

    def value(node: list[Any]) -> Any:
        kind, *rest = node
        if kind == "value":
            return rest[0]
        if kind == "tensor":
            name, shape, *where = rest
            raw = bytearray(data(*where))
            dtype = getattr(torch, name)
            return (
                torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
            )
        if kind == "array":
            name, shape, *where = rest
            return np.frombuffer(bytearray(data(*where)), dtype=np.dtype(name)).reshape(shape)
        if kind == "objects":
            items = np.empty(len(rest[1]), dtype=object)
            items[:] = [value(item) for item in rest[1]]
            return items.reshape(rest[0])
        if kind == "bytes":
            return data(*rest)
        if kind in ("list", "tuple"):
            items_ = [value(item) for item in rest[0]]
            return tuple(items_) if kind == "tuple" else items_
        return {value(key): value(item) for key, item in rest[0]}

    return value(json.loads(packed.tree))
