"""Buffer, file and injection rule of success replay."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from verl_gui.replay import BufferFileError, Group, Row, SuccessBuffer, inject, pack, unpack

CASES = [
    case
    for line in (Path(__file__).parent / "data" / "cases.jsonl").read_text().splitlines()
    for case in json.loads(line)["cases"]
]


def rng():
    return np.random.default_rng(0)


def row(seed=0, size=6):
    draw = torch.Generator().manual_seed(seed)
    return {
        "responses": torch.randint(0, 1000, (size,), generator=draw),
        "response_mask": torch.tensor([1] * (size - 1) + [0]),
        "rollout_log_probs": torch.randn(size, generator=draw),
        "position_ids": torch.arange(4 * size).reshape(4, size),
        "pixel_values": torch.randn(3, 5, generator=draw).bfloat16(),
        "multi_modal": [{"png": b"\x89PNG" + bytes(range(9)), "grid": np.array([[1, 2, 2]])}],
        "extra_fields": {"reward_extra_info": {"score": 1.0}, "min_global_steps": 3, "none": None},
    }


def same(a, b):
    pa, pb = pack(a), pack(b)
    return pa.tree == pb.tree and pa.blobs == pb.blobs


def stored_steps(buffer, task):
    return [s.step for s in buffer.tasks.get(task, ())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (4, 3)])
def test_tensors_survive_bit_by_bit(dtype, shape):
    tensor = (torch.rand(shape) * 10).to(dtype)
    back = unpack(pack(tensor))
    assert back.dtype == dtype and back.shape == tensor.shape and torch.equal(back, tensor)


def test_a_record_survives_whole_and_nothing_else_is_accepted():
    assert same(unpack(pack(row())), row())
    assert torch.isnan(unpack(pack(torch.tensor(float("nan")))))
    with pytest.raises(TypeError, match="object"):
        pack({"x": object()})


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "replay"])
def test_every_group_s_success_is_stored(case):
    buffer = SuccessBuffer()
    for task in range(case["tasks"]):
        for n in range(case["n"]):
            buffer.add(str(task), row(10 * task + n), step=1, score=float([task, n] in case["success"]))
    assert {task: len(kept) for task, kept in buffer.tasks.items()} == case["expect"]["stored"]


@pytest.mark.parametrize("case", [c for c in CASES if c["kind"] == "resume"])
def test_a_saved_buffer_comes_back(case, tmp_path):
    buffer = SuccessBuffer()
    for n in range(case["stored"]):
        buffer.add("t", row(n), step=n, score=1.0)
    buffer.save(tmp_path / "buffer.safetensors")
    again = SuccessBuffer()
    again.load(tmp_path / "buffer.safetensors")
    assert len(again) == case["expect"] and again.tasks == buffer.tasks and again.nbytes == buffer.nbytes
    assert same(
        again.sample("t", step=9, rng=rng()),
        buffer.sample("t", step=9, rng=rng()),
    )
    assert [p.name for p in tmp_path.iterdir()] == ["buffer.safetensors"]


def test_damage_is_an_error_and_changes_nothing(tmp_path):
    path = tmp_path / "buffer"
    buffer = SuccessBuffer()
    buffer.add("t", row(), step=1, score=1.0)
    buffer.save(path)
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[-20] ^= 1
    for bad in (bytes(flipped), data[:-9], data[:4], b"", b"no buffer at all"):
        path.write_bytes(bad)
        with pytest.raises(BufferFileError, match=str(path)):
            buffer.load(path)
        assert len(buffer) == 1 and path.read_bytes() == bad
    with pytest.raises(FileNotFoundError):
        buffer.load(tmp_path / "none")


def test_stored_rows_are_copies():
    record, buffer = row(), SuccessBuffer()
    buffer.add("t", record, step=1, score=1.0)
    record["responses"].zero_()
    buffer.sample("t", step=1, rng=rng())["responses"].zero_()
    assert same(buffer.sample("t", step=1, rng=rng()), row())


def test_bounds_and_duplicates():
    buffer = SuccessBuffer(2)
    assert not buffer.add("t", row(), step=1, score=0.1)
    assert not buffer.add("t", row(), step=1, score=float("nan"))
    for step in (1, 2, 3):
        assert buffer.add("t", row(step), step=step, score=1.0)
    assert stored_steps(buffer, "t") == [2, 3]
    assert buffer.add("t", row(2), step=5, score=1.0)
    assert stored_steps(buffer, "t") == [3, 5]
    size = buffer.nbytes
    small = SuccessBuffer(8, max_bytes=size)
    for step in range(4):
        small.add(str(step), row(step), step=step, score=1.0)
    assert list(small.tasks) == ["2", "3"] and small.nbytes <= size
    assert not SuccessBuffer(max_bytes=10).add("t", row(), step=1, score=1.0)


def test_fresh_successes_are_drawn_more_often():
    buffer, draws = SuccessBuffer(freshness_tau=2.0), rng()
    for step in (0, 2):
        buffer.add("t", row(step), step=step, score=1.0)
    drawn = [buffer.draw("t", step=4, rng=draws).step for _ in range(4000)]
    assert np.mean([step == 2 for step in drawn]) == pytest.approx(1 / (1 + np.exp(-1)), abs=0.03)
    assert buffer.draw("t", step=10**9, rng=draws) is not None


def full_buffer():
    buffer = SuccessBuffer()
    buffer.add("t", row(), step=1, score=1.0)
    return buffer


def plan(scores, buffer=None, uid="u", valid=None, fingerprint="", **options):
    valid = valid or [True] * len(scores)
    rows = [Row(s, valid=v, fingerprint=fingerprint) for s, v in zip(scores, valid, strict=True)]
    buffer = buffer if buffer is not None else full_buffer()
    return inject([Group(uid, "t", rows)], buffer, step=2, rng=rng(), **options)


def test_only_failed_groups_with_a_stored_success_are_injected():
    (injection,) = plan([0.0] * 8)
    assert (injection.uid, injection.row) == ("u", 0) and same(injection.stored.record, row())
    assert plan([0.0] * 7 + [1.0]) == [] and plan([0.0] * 1023 + [1.0]) == []
    assert plan([0.2] * 8) == [] and plan([0.0, 0.15]) == []
    assert plan([0.0] * 8, SuccessBuffer()) == []


def test_invalid_rows_neither_count_nor_are_replaced():
    assert plan([0.0, 0.0, 0.0], valid=[False, False, True]) == []
    assert plan([1.0, 0.0, 0.0], valid=[False, True, True])[0].row == 1


def test_a_success_is_not_injected_beside_itself():
    buffer = full_buffer()
    mark = buffer.tasks["t"][0].fingerprint
    assert plan([0.0] * 8, buffer, fingerprint=mark) == []


def test_two_instances_of_a_task_are_two_groups():
    groups = [Group(uid, "t", [Row(0.0)] * 4) for uid in ("a", "b")]
    groups.append(Group("c", "t", [Row(1.0)] * 4))
    assert [i.uid for i in inject(groups, full_buffer(), step=1, rng=rng())] == ["a", "b"]


def test_the_replaced_row_is_chosen():
    rows = [Row(0.0, 0.0), Row(0.0, -0.5), Row(0.0, 0.0)]
    groups = [Group("u", "t", rows)]
    assert inject(groups, full_buffer(), step=1, rng=rng(), replaced="worst_format")[0].row == 1
    draws = np.random.default_rng(1)
    chosen = {inject(groups, full_buffer(), step=1, rng=draws, replaced="random")[0].row for _ in range(40)}
    assert chosen == {0, 1, 2}
    with pytest.raises(ValueError, match="worst_format"):
        inject(groups, full_buffer(), step=1, rng=rng(), replaced="last")
