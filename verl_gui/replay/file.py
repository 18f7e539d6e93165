"""The file of a success buffer: safetensors, written at once, with version and checksum."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

FORMAT_VERSION = 1


class BufferFileError(ValueError):
    """A file that is no success buffer, is damaged, or of another format version; it is left as it is."""


def _checksum(index: str, blobs: list[bytes]) -> str:
    digest = hashlib.sha256(index.encode())
    for blob in blobs:
        digest.update(len(blob).to_bytes(8, "little") + blob)
    return digest.hexdigest()


def write(path: str | Path, index: Any, blobs: list[bytes]) -> None:
    """Write all or nothing: a reader, or a run killed meanwhile, sees the former file or the new one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(index)
    metadata = {"verl_gui_replay": str(FORMAT_VERSION), "index": text, "sha256": _checksum(text, blobs)}
    tensors = {str(i): np.frombuffer(blob, dtype=np.uint8) for i, blob in enumerate(blobs)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(save(tensors, metadata=metadata))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: str | Path) -> tuple[Any, list[bytes]]:
    """What :func:`write` was given.

    Raises:
        FileNotFoundError: there is no such file.
        BufferFileError: it cannot be used; says why.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no success buffer at {path}")
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            blobs = [file.get_tensor(str(i)).tobytes() for i in range(len(file.keys()))]
    except SafetensorError as error:
        raise BufferFileError(f"{path} is damaged or no success buffer: {error}") from error
    version = metadata.get("verl_gui_replay")
    if version != str(FORMAT_VERSION):
        raise BufferFileError(f"{path} has format version {version}; expected {FORMAT_VERSION}")
    if _checksum(metadata["index"], blobs) != metadata["sha256"]:
        raise BufferFileError(f"{path} is damaged: its checksum differs; use the file of another checkpoint")
    return json.loads(metadata["index"]), blobs
