"""The pool's bookkeeping, with a clock that stands still unless it is moved."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_gui.envs.pool_state import EnvPoolConfig, PoolMetrics, PoolState, percentile


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ready_state(size: int, clock: Clock, *, spares: int = 0) -> PoolState:
    state = PoolState(size, spares=spares, lease_ttl_s=30.0, clock=clock)
    for number in range(size + spares):
        state.add(f"w{number}")
        state.ready(f"w{number}")
    return state


# -- configuration -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backend", ""),
        ("backend", None),
        ("num_envs", 0),
        ("num_envs", 2.5),
        ("num_envs", True),
        ("spares", -1),
        ("options", ["screen"]),
        ("step_timeout_s", 0),
        ("reset_timeout_s", float("inf")),
        ("lease_timeout_s", "30"),
        ("heartbeat_s", float("nan")),
        ("max_reset_retries", -1),
        ("resource", ""),
    ],
)
def test_bad_settings_are_named(field: str, value: object) -> None:
    settings = {"backend": "desktop", field: value}
    with pytest.raises(ValueError, match=field):
        EnvPoolConfig(**settings)


def test_defaults_are_valid_and_a_lease_outlives_three_heartbeats() -> None:
    assert EnvPoolConfig("desktop", heartbeat_s=2.0).lease_ttl_s == 6.0


# -- leases --------------------------------------------------------------------------------------


def test_leases_are_granted_in_the_order_of_their_requests(clock: Clock) -> None:
    state = ready_state(2, clock)
    for lease in "abcd":
        state.request(lease)
    assert state.grants() == [("a", "w0"), ("b", "w1")]
    assert state.queued == 2
    assert state.grants() == []
    assert state.release("b") is None
    assert state.grants() == [("c", "w1")]
    state.release("a")
    assert state.grants() == [("d", "w0")]


def test_one_who_gives_up_waiting_does_not_block_the_next(clock: Clock) -> None:
    state = ready_state(1, clock)
    for lease in "abc":
        state.request(lease)
    state.grants()
    state.release("b")
    state.release("a")
    assert state.grants() == [("c", "w0")]


def test_a_clean_worker_goes_back_and_a_broken_one_does_not(clock: Clock) -> None:
    state = ready_state(1, clock)
    state.request("a")
    state.request("b")
    state.grants()
    assert state.release("a", "step") == "w0"
    assert state.grants() == [], "a broken environment was handed on"
    assert state.usable == 0 and state.missing == 0
    state.ready("w0")
    assert state.grants() == [("b", "w0")]


def test_a_removed_worker_is_missed(clock: Clock) -> None:
    state = ready_state(2, clock)
    state.request("a")
    state.grants()
    broken = state.release("a", "dead")
    assert broken is not None
    state.remove(broken)
    assert state.missing == 1


def test_spares_step_in_but_never_widen_the_pool(clock: Clock) -> None:
    state = ready_state(1, clock, spares=1)
    state.request("a")
    state.request("b")
    assert state.grants() == [("a", "w0")], "num_envs is a limit, spares or not"
    state.release("a", "timeout")
    assert state.grants() == [("b", "w1")]


def test_swapping_keeps_the_place_and_goes_before_the_queue(clock: Clock) -> None:
    state = ready_state(2, clock)
    for lease in "abc":
        state.request(lease)
    state.grants()
    assert state.swap("a", "reset") == "w0"
    state.ready("w0")
    assert state.grants() == [("a", "w0")]
    assert state.queued == 1


def test_swapping_a_lease_that_holds_nothing_is_refused(clock: Clock) -> None:
    state = ready_state(1, clock)
    with pytest.raises(KeyError):
        state.swap("a", "reset")


def test_requesting_twice_is_refused(clock: Clock) -> None:
    state = ready_state(1, clock)
    state.request("a")
    state.grants()
    with pytest.raises(ValueError, match="already requested"):
        state.request("a")


def test_unrenewed_leases_expire(clock: Clock) -> None:
    state = ready_state(2, clock)
    state.request("a")
    state.request("b")
    state.grants()
    clock.now += 20
    state.renew(["a", "unknown"])
    clock.now += 15
    assert state.expired() == ["b"]
    assert state.release("b", "abandoned") == "w1"
    assert state.expired() == []


def test_a_lease_lives_anew_from_its_grant(clock: Clock) -> None:
    state = ready_state(1, clock)
    state.request("a")
    state.request("b")
    state.grants()
    clock.now += 29
    state.release("a")
    state.grants()
    clock.now += 29
    assert state.expired() == []


def test_a_suspect_must_be_idle(clock: Clock) -> None:
    state = ready_state(2, clock)
    state.request("a")
    state.grants()
    assert not state.suspect("w0"), "w0 is held; its holder will notice"
    assert state.suspect("w1")
    assert state.idle == ()
    state.remove("w1")
    assert state.missing == 1


EVENTS = ("request", "start", "fail", "release", "break", "swap", "give_up")


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_nothing_is_ever_lost_or_held_twice(data: st.DataObject) -> None:
    size, spares = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2))
    clock = Clock()
    state = PoolState(size, spares=spares, lease_ttl_s=10.0, clock=clock)
    starting: list[str] = []
    held: dict[str, str] = {}
    waiting: list[str] = []
    swapping: list[str] = []
    for serial in range(data.draw(st.integers(0, 60))):
        clock.now += 1.0
        assert state.missing >= 0
        while state.missing:
            worker = f"w{serial}-{state.missing}"
            state.add(worker)
            starting.append(worker)
        event = data.draw(st.sampled_from(EVENTS))
        if event == "request":
            state.request(lease := f"l{serial}")
            waiting.append(lease)
        elif event == "start" and starting:
            state.ready(starting.pop())
        elif event == "fail" and starting:
            state.remove(starting.pop())
        elif event in ("release", "break", "swap") and held:
            lease = data.draw(st.sampled_from(sorted(held)))
            worker = held.pop(lease)
            if event == "release":
                assert state.release(lease) is None
            else:
                broken = state.release(lease, "step") if event == "break" else state.swap(lease, "reset")
                assert broken == worker
                starting.append(worker)
                if event == "swap":
                    swapping.append(lease)
        elif event == "give_up" and waiting:
            state.release(waiting.pop())
        for lease, worker in state.grants():
            first_in_line = (swapping or waiting)[0]
            assert lease == first_in_line, "the queue is fair"
            (swapping or waiting).pop(0)
            assert worker not in held.values() and worker not in starting
            held[lease] = worker
        assert len(held) <= size
        assert state.usable == len(state.idle) + len(held)
        assert state.usable + len(starting) + state.missing == size + spares
        assert state.queued == len(waiting)
        if state.idle and (swapping or waiting):
            assert len(held) == size, "somebody waits although an environment is free"


# -- metrics -------------------------------------------------------------------------------------


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, p) for p in (50, 95, 99, 100)] == [50.0, 95.0, 99.0, 100.0]
    assert percentile([7.0], 99) == 7.0


def test_utilisation_is_held_time_over_total_time(clock: Clock) -> None:
    metrics = PoolMetrics(4, clock)
    metrics.held(4)
    clock.now += 10
    metrics.held(1)
    clock.now += 10
    metrics.took("step", 20.0)
    report = metrics.report()
    assert report["env/utilisation"] == pytest.approx(50 / 80)
    assert report["env/working"] == pytest.approx(20 / 80)


def test_a_report_starts_the_next_one(clock: Clock) -> None:
    metrics = PoolMetrics(1, clock)
    metrics.took("reset", 2.0)
    metrics.failed("timeout")
    clock.now += 10
    metrics.held(1)
    first = metrics.report()
    assert first["env/count/reset"] == 1.0
    assert first["env/failures/timeout"] == 1.0
    assert first["env/reset_s/p50"] == first["env/reset_s/p99"] == 2.0
    assert first["env/utilisation"] == 0.0
    clock.now += 5
    assert metrics.report() == {"env/utilisation": 1.0, "env/working": 0.0}


def test_the_wait_for_a_lease_is_measured(clock: Clock) -> None:
    state = ready_state(1, clock)
    state.request("a")
    state.request("b")
    state.grants()
    clock.now += 8
    state.release("a")
    state.grants()
    report = state.metrics.report()
    assert report["env/lease_s/p99"] == 8.0
    assert report["env/count/lease"] == 2.0
    assert report["env/working"] == 0.0


# -- tasks set up ahead of time --------------------------------------------------------------------


def saturated(spares: int) -> PoolState:
    """One environment held by "first", and ``spares`` idle ones: s0, s1, …"""
    state = PoolState(1, spares=spares)
    for worker in ["held", *(f"s{number}" for number in range(spares))]:
        state.add(worker)
        state.ready(worker)
    state.request("first")
    assert state.grants() == [("first", "held")]
    return state


def test_spares_are_reserved_in_the_order_of_the_queue_and_granted_to_their_leases() -> None:
    state = saturated(2)
    state.request("unknown")  # did not say what it is for
    for lease in "abc":
        state.request(lease, task_known=True)
    assert state.grants() == []
    assert state.reservations() == [("a", "s0"), ("b", "s1")]
    assert state.reservations() == []
    state.release("first")
    assert state.grants() == [("unknown", "held")]
    state.release("unknown")
    assert state.grants() == [("a", "s0")]
    assert state.reservations() == [("c", "held")]
    state.release("a")
    assert state.grants() == [("b", "s1")]


def test_a_lease_that_gives_up_frees_its_spare() -> None:
    state = saturated(1)
    for lease in "ab":
        state.request(lease, task_known=True)
    assert state.reservations() == [("a", "s0")]
    state.release("a")
    assert state.reservations() == [("b", "s0")]


def test_who_must_have_a_fresh_environment_takes_the_spare_that_waits_longest_for_its_place() -> None:
    state = saturated(2)
    for lease in "ab":
        state.request(lease, task_known=True)
    state.reservations()
    state.swap("first", "step")
    assert state.grants() == [("first", "s1")]
    state.ready("held")
    assert state.reservations() == [("b", "held")]


def test_a_spare_that_breaks_is_no_longer_reserved() -> None:
    state = saturated(1)
    state.request("a", task_known=True)
    assert state.reservations() == [("a", "s0")]
    assert state.suspect("s0")
    state.stop_preparing("a")
    state.ready("s0")
    assert state.reservations() == []  # its task may be at fault; it is not tried again
    state.release("first")
    assert state.grants() == [("a", "s0")]
