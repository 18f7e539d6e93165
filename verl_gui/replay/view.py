"""Success buffers for people: which successes are in a file, and what they look like."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from verl_gui.replay.buffer import Stored, SuccessBuffer
from verl_gui.replay.file import BufferFileError
from verl_gui.replay.run import successes_of

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
details { border-top: 1px solid #8884; padding: .4rem 0 } summary { cursor: pointer }
ol { display: flex; flex-wrap: wrap; gap: 1rem; padding: 0; list-style: none }
li { max-width: 22rem } img { max-width: 100%; border: 1px solid #8886 }
pre { white-space: pre-wrap; margin: .3rem 0 }
"""


def open_buffer(path: str | Path) -> SuccessBuffer:
    """The successes in a buffer's file or in a checkpoint's ``data.pt``, without any bound.

    Raises:
        FileNotFoundError: there is no such file.
        BufferFileError: it holds none, or cannot be used.
    """
    path = Path(path)
    buffer = SuccessBuffer(capacity_per_task=10**9, min_score=-1.0)
    if path.suffix != ".pt":
        buffer.load(path)
        return buffer
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at {path}")
    import torch

    # weights_only: nothing in the file is executed.
    state = _find(torch.load(path, weights_only=True))
    if state is None:
        raise BufferFileError(f"{path} holds no success buffer; was gui.replay.enable on?")
    buffer.load_state_dict({"tasks": successes_of(state)})
    return buffer


def _find(state: object) -> dict[str, Any] | None:
    """The data set's own state, wherever the loader put it."""
    if not isinstance(state, dict):
        return None
    if "replay" in state:
        return state["replay"]
    return next((found for value in state.values() if (found := _find(value)) is not None), None)


def table(buffer: SuccessBuffer) -> str:
    """A line for each task and one for all."""
    lines = [f"{'task':50} {'successes':>9} {'steps':>11} {'best':>5} {'kB':>9}"]
    for task, stored in sorted(buffer.tasks.items()):
        steps = [success.step for success in stored]
        size = sum(success.packed.nbytes for success in stored) / 1e3
        best = max(success.score for success in stored)
        lines.append(f"{task:50} {len(stored):9} {f'{min(steps)}-{max(steps)}':>11} {best:5.2f} {size:9.1f}")
    lines.append(
        f"{f'{len(buffer.tasks)} tasks':50} {len(buffer):9} {'':11} {'':5} {buffer.nbytes / 1e3:9.1f}"
    )
    return "\n".join(lines)


def screenshots(record: Any) -> list[bytes]:
    """The encoded screenshots of a stored row in order; none of a row that holds pixels."""
    from verl_gui.models.encoded_images import IMAGES, SPANS

    inputs = record.get("multi_modal_inputs") or {} if isinstance(record, dict) else {}
    if IMAGES not in inputs:
        return []
    data = inputs[IMAGES].numpy().tobytes()
    return [data[begin : begin + length] for begin, length in inputs[SPANS].tolist()]


def answers(record: Any, decode: Callable[[list[int]], str] | None) -> list[str]:
    """The sampled answers of a stored row, decoded; none without a way to decode them."""
    if decode is None:
        return []
    runs: list[list[int]] = [[]]
    for token, sampled in zip(record["responses"].tolist(), record["response_mask"].tolist(), strict=True):
        if sampled:
            runs[-1].append(token)
        elif runs[-1]:
            runs.append([])
    return [decode(run) for run in runs if run]


def page(buffer: SuccessBuffer, decode: Callable[[list[int]], str] | None = None) -> str:
    """One self-contained HTML page with every success: its screenshots and, decoded, its answers."""
    body = "".join(
        _section(task, success, decode) for task, stored in sorted(buffer.tasks.items()) for success in stored
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Stored successes</title>'
        f"<style>{_STYLE}</style><h1>Stored successes</h1>"
        f"<p>{len(buffer)} of {len(buffer.tasks)} tasks, {buffer.nbytes / 1e6:.2f} MB</p>{body}</html>\n"
    )


def _section(task: str, success: Stored, decode: Callable[[list[int]], str] | None) -> str:
    record = success.record
    size = f"{success.packed.nbytes / 1e3:.1f} kB"
    title = f"{html.escape(task)}: score {success.score:g}, step {success.step}, {size}"
    return f"<details><summary>{title}</summary><ol>{''.join(_turns(record, decode))}</ol></details>"


def _turns(record: Any, decode: Callable[[list[int]], str] | None) -> Iterator[str]:
    pictures, said = screenshots(record), answers(record, decode)
    for turn in range(max(len(pictures), len(said))):
        yield "<li>"
        if turn < len(pictures):
            kind = "webp" if pictures[turn][8:12] == b"WEBP" else "png"
            data = base64.b64encode(pictures[turn]).decode()
            yield f'<img alt="screenshot {turn + 1}" src="data:image/{kind};base64,{data}">'
        if turn < len(said):
            yield f"<pre>{html.escape(said[turn])}</pre>"
        yield "</li>"
