"""verl's engines take the pixels of a micro-batch from its rows; rows with encoded screenshots have none yet.

:mod:`verl_gui.models.encoded_images` makes them at that moment, in the training process, so that pixels never
travel between processes. Rows without encoded screenshots pass unchanged.
"""

import functools
from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VERL, Bridge
from verl_gui.compat._imports import replace_imported


def _make_pixels_first(model: ModuleType) -> None:
    original = model.extract_multi_modal_inputs

    @functools.wraps(original)
    def extract_multi_modal_inputs(batch_data: Any, indices: list[int] | None = None) -> dict[str, Any]:
        from verl_gui.models.encoded_images import IMAGES, with_pixels

        rows = [getattr(row, "data", row) for row in batch_data]
        if any(row is not None and IMAGES in row for row in rows):
            chosen = rows if indices is None else [rows[i] for i in indices if i < len(rows)]
            batch_data, indices = with_pixels(chosen), None
        extracted: dict[str, Any] = original(batch_data, indices)
        return extracted

    replace_imported(model, "extract_multi_modal_inputs", extract_multi_modal_inputs)


BRIDGE = Bridge(
    name="encoded-images",
    module="verl.utils.model",
    requires={"verl": VERL},
    twin="patches/verl/0013-multi-modal-inputs-that-are-made-when-needed.patch",
    apply=_make_pixels_first,
)
