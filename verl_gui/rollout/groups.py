"""Groups that lost episodes to environment faults: which of them still teach something.

An invalid episode leaves no row. What a group of one is worth depends on nothing but itself: it has no
baseline, so its advantage would be its bare score.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

LEAST_EPISODES = 2
"""Valid episodes that a group needs: one cannot be compared with anything."""

SHORT_GROUP_POLICIES = ("mask", "refill", "keep")


def episodes_by_group(keys: Iterable[str]) -> dict[str, set[str]]:
    """Group (``uid``) → its episodes, from the row keys ``{uid}_{session}_{index}``."""
    groups: dict[str, set[str]] = {}
    for key in keys:
        episode = key.rpartition("_")[0]
        groups.setdefault(episode.rpartition("_")[0], set()).add(episode)
    return groups


def short_groups(uids: Iterable[str], keys: Iterable[str], least: int = LEAST_EPISODES) -> set[str]:
    """Those of ``uids`` with fewer than ``least`` episodes among ``keys``, groups without any included."""
    groups = episodes_by_group(keys)
    return {uid for uid in uids if len(groups.get(uid, ())) < least}


def to_replace(finished: Set[str], short: Set[str], *, policy: str, batch_size: int) -> set[str]:
    """The finished groups to throw away and to sample new prompts for.

    Args:
        finished: all finished groups.
        short: those of them that are short.
        policy: ``refill`` replaces every short group; ``mask`` leaves them to be dropped from the batch, and
            replaces them only when nothing would be left of it; ``keep`` replaces none.
        batch_size: groups of a batch.
    """
    if policy == "refill":
        return set(short)
    if policy == "mask" and len(finished) >= batch_size and finished == short:
        return set(short)
    return set()
