import pytest
import torch
from tensordict import TensorDict

from verl_gui.compat import ragged_positions


def batch(lengths):
    """As it comes out of TransferQueue."""
    rows = [torch.arange(4 * length).view(4, length) for length in lengths]
    ids = [torch.arange(length) for length in lengths]
    fields = {
        "position_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
        "input_ids": torch.nested.as_nested_tensor(ids, layout=torch.jagged),
    }
    return TensorDict(fields, batch_size=len(lengths)), rows


def padded(data, lengths):
    return torch.nested.to_padded_tensor(data["position_ids"], 0, output_size=(len(lengths), 4, max(lengths)))


def test_released_verl_mixes_up_the_positions_of_a_single_sequence(released):
    data, rows = batch([6])
    released(ragged_positions.BRIDGE).maybe_fix_3d_position_ids(data)
    assert not torch.equal(padded(data, [6])[0], rows[0])


def test_released_verl_fails_on_equal_lengths(released):
    data, _ = batch([6, 6])
    released(ragged_positions.BRIDGE).maybe_fix_3d_position_ids(data)
    with pytest.raises(RuntimeError):
        padded(data, [6, 6])


LENGTHS = ([6], [6, 6], [4], [4, 4], [8, 8], [12, 12, 12], [1], [1, 1, 1, 1], [6, 7], [3, 6, 6])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_every_sequence_keeps_its_positions(repaired, lengths):
    module = repaired(ragged_positions.BRIDGE)
    data, rows = batch(lengths)
    for _ in range(2):  # verl calls it once more for every mini-batch
        module.maybe_fix_3d_position_ids(data)
        assert torch.equal(data["position_ids"].values(), torch.cat(rows, dim=1))
        for got, row in zip(padded(data, lengths), rows, strict=True):
            assert torch.equal(got[:, : row.shape[1]], row)
        picked = module.index_select_tensor_dict(data, [len(rows) - 1])["position_ids"]
        assert torch.equal(picked.values(), rows[-1])


def test_text_models_positions_are_left_alone(repaired):
    data = TensorDict({"position_ids": torch.arange(6).view(2, 3)}, batch_size=2)
    repaired(ragged_positions.BRIDGE).maybe_fix_3d_position_ids(data)
    assert data["position_ids"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_verls_engine_has_the_repaired_function():
    import verl.workers.engine.base as engine
    from verl.utils import tensordict_utils

    assert engine.maybe_fix_3d_position_ids is tensordict_utils.maybe_fix_3d_position_ids
    assert "verl_gui" in engine.maybe_fix_3d_position_ids.__module__
