import pytest
import transfer_queue as tq
from transfer_queue import KVBatchMeta

from verl_gui.rollout.sampler import GuiSampler, RolloutStalled, StallClock, last_outputs


def test_one_row_an_episode_the_last():
    keys = ["u_0_0", "u_0_1", "u_0_10", "u_0_9", "v_0_0", "u_1_0"]
    assert sorted(last_outputs(keys)) == ["u_0_10", "u_1_0", "v_0_0"]


def test_progress_winds_the_clock():
    clock = StallClock(10)
    for now, state in [(0, "a"), (9, "a"), (11, "b"), (20, "b"), (21, "b")]:
        clock.look(state, now)
    with pytest.raises(RolloutStalled, match=r"12 s \(b\)"):
        clock.look("b", 23)


def sampler(policy="mask", batch_size=2):
    made = GuiSampler(
        trainer_mode="sync", trainer_config={}, max_off_policy_threshold=None, max_off_policy_strategy="drop",
        sampler_kwargs={"short_groups": policy}, refill_fn=lambda count: None,
    )  # fmt: skip
    made._batch_size = batch_size
    return made


def finished(made, rows):
    """Groups that have ended, with the keys of their rows."""
    made.finished_keys["train"] = set(rows)
    made.partitions["train"] = {key: {} for keys in rows.values() for key in keys}


FULL, SHORT, EMPTY = ["u_0_0", "u_1_0"], ["v_3_0", "v_3_1"], []


@pytest.mark.parametrize("policy, replaced", [("mask", set()), ("refill", {"v", "w"}), ("keep", set())])
def test_short_groups_are_replaced_or_stay(policy, replaced):
    made = sampler(policy)
    finished(made, {"u": FULL, "v": SHORT, "w": EMPTY})
    assert made._terminal_eviction_reasons(1, "train")[2] == replaced
    assert made._terminal_eviction_reasons(1, "val")[2] == set()


def test_short_groups_are_left_out_of_the_batch_and_the_queue(monkeypatch):
    cleared = []
    monkeypatch.setattr(tq, "kv_clear", lambda partition_id, keys: cleared.extend(keys))
    batch = KVBatchMeta(partition_id="train", keys=[*FULL, *SHORT], tags=[{"n": n} for n in range(4)])
    assert sampler()._leave_out_short_groups(batch) == 1
    assert batch.keys == FULL and batch.tags == [{"n": 0}, {"n": 1}] and cleared == SHORT


def test_a_batch_without_a_usable_group_is_sampled_anew_a_few_times_then_refused():
    made = sampler()
    finished(made, {"v": SHORT, "w": EMPTY})
    for _ in range(2):
        assert made._terminal_eviction_reasons(1, "train")[2] == {"v", "w"}
    with pytest.raises(RolloutStalled, match="short_groups=keep"):
        made._terminal_eviction_reasons(1, "train")


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(ValueError, match="short_groups='drop'"):
        sampler("drop")
