import pytest

from verl_gui.rollout.groups import episodes_by_group, short_groups, to_replace

KEYS = ["a_0_0", "a_0_1", "a_1_0", "b_0_0", "b_0_1", "c_3_0", "c_4_0", "c_5_0"]


def test_episodes_are_counted_not_rows():
    assert episodes_by_group(KEYS)["b"] == {"b_0"}
    assert short_groups("abcd", KEYS) == {"b", "d"}  # d lost all its episodes
    assert short_groups("ac", KEYS) == set()


@pytest.mark.parametrize("policy, finished, short, replaced", [
    ("refill", "abc", "b", "b"),
    ("mask", "abc", "b", ""),
    ("mask", "ab", "ab", ""),  # the third may still come
    ("mask", "abc", "abc", "abc"),  # nothing would be left of the batch
    ("keep", "abc", "abc", ""),
    ("refill", "", "", ""),
])  # fmt: skip
def test_what_is_replaced(policy, finished, short, replaced):
    assert to_replace(set(finished), set(short), policy=policy, batch_size=3) == set(replaced)
