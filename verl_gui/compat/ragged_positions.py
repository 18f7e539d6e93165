"""verl takes the four rows of positions for the ragged dimension when all sequences are equally long.

A batch of (4, L) positions comes out of TransferQueue through ``torch.nested.as_nested_tensor``, which makes
the first dimension ragged unless the lengths differ. verl then declares the last one to be it and leaves the
data as they lie: a single sequence is trained at wrong positions, several of equal length fail.
"""

from types import ModuleType
from typing import Any

from verl_gui.compat._guard import VERL, Bridge
from verl_gui.compat._imports import replace_imported

_ROWS = 4  # text, time, height, width


def _lay_out_by_length(tensordict_utils: ModuleType) -> None:
    def maybe_fix_3d_position_ids(data: Any) -> None:
        positions = data["position_ids"] if "position_ids" in data.keys() else None  # noqa: SIM118
        if positions is None or positions.dim() != 3 or not positions.is_nested:
            return
        # (rows, all tokens), or (rows of all sequences, L) when the rows were taken as ragged
        values, sequences = positions.values(), len(data)
        if values.shape[1] != positions.offsets()[-1] or len(values) == _ROWS * sequences > _ROWS:
            rows = list(values.unflatten(0, (sequences, -1)))
            data["position_ids"] = tensordict_utils.nested_tensor_from_tensor_list(rows, ragged_idx=2)
        else:
            positions._ragged_idx = 2

    replace_imported(tensordict_utils, "maybe_fix_3d_position_ids", maybe_fix_3d_position_ids)


BRIDGE = Bridge(
    name="ragged-positions",
    module="verl.utils.tensordict_utils",
    requires={"verl": VERL},
    twin="patches/verl/0010-tensordict-lay-out-positions-by-length.patch",
    apply=_lay_out_by_length,
)
