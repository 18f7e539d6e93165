"""A person plays: what the page sends becomes an answer in the grammar, and nothing else does."""

import asyncio
import json
import random
import threading
import time
import urllib.error
import urllib.request

import pytest
from in_process import Leases, instances, png

from verl_gui.config import RolloutConfig
from verl_gui.envs.base import Observation
from verl_gui.envs.pool_state import EnvPoolConfig
from verl_gui.evaluation.engine import RunSettings, evaluate
from verl_gui.evaluation.policies import PolicyFailure, PolicyOptions, PolicySetupError, open_policy
from verl_gui.evaluation.policies.person import Desk, NotAnAnswer, PersonPolicy
from verl_gui.evaluation.policies.person_page import serve
from verl_gui.evaluation.policies.spec import environments_for
from verl_gui.evaluation.progress import Progress
from verl_gui.evaluation.runs import RunLog
from verl_gui.rollout.episode import Episode
from verl_gui.rollout.trajectory import read_trajectories
from verl_gui.tasks import Task

SCREEN = (56, 84)


def episode() -> Episode:
    return Episode(Task("t"), "do it", SCREEN, SCREEN)


def ask(policy: PersonPolicy) -> str:
    return asyncio.run(policy.answer(episode(), Observation(png()), random.Random(0))).text


def call(address: str, path: str, body: dict | None = None, token: str | None = None) -> tuple[int, dict]:
    base, _, own = address.partition("#")
    request = urllib.request.Request(
        base.rstrip("/") + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {own if token is None else token}",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")


def next_turn(address: str, seen: int = 0) -> dict:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        status, turn = call(address, f"/turn?seen={seen}")
        if status == 200:
            return turn
        time.sleep(0.01)
    raise AssertionError("no turn came")


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ({"type": "click", "x": 5, "y": 7}, "click(start_box='(5,7)')"),
        ({"type": "type", "text": "it's\n"}, r"type(content='it\'s\n')"),
        ({"type": "hotkey", "keys": ["ctrl", "a"]}, "hotkey(key='ctrl a')"),
        ({"type": "scroll", "x": 1, "y": 2, "direction": "down", "amount": 5}, "direction='down'"),
        ({"type": "wait"}, "wait()"),
        ({"type": "finished", "text": "42"}, "finished(content='42')"),
    ],
)
def test_what_is_done_is_said_in_the_grammar(action, said):
    desk = Desk("uitars")
    turn = desk.put(episode(), png())
    text = desk.play(turn.number, [action], "because")
    assert said in text and text.startswith("Thought: because")
    assert turn.answer.result() == text and desk.turn is None


@pytest.mark.parametrize(
    "actions",
    [
        [],
        [{"type": "fly"}],
        [{"type": "click", "x": -1, "y": 0}],
        [{"type": "click", "x": 1, "y": 0, "bold": True}],
        [{"type": "type", "text": ""}],
        [{"type": "hotkey", "keys": ["nokey"]}],
        [{"type": "wait", "seconds": 3}],
        ["click"],
    ],
)
def test_what_cannot_be_played_is_refused_and_the_turn_still_waits(actions):
    desk = Desk("uitars")
    turn = desk.put(episode(), png())
    with pytest.raises(NotAnAnswer):
        desk.play(turn.number, actions, "")
    assert desk.turn is turn and not turn.answer.done()


def test_a_late_click_does_not_answer_the_next_screenshot():
    desk = Desk("uitars")
    first = desk.put(episode(), png())
    second = desk.put(episode(), png(1))
    with pytest.raises(NotAnAnswer, match="no longer"):
        desk.play(first.number, [{"type": "wait"}], "")
    assert desk.turn is second


def test_nobody_there_and_skipping_are_no_failures_of_an_agent():
    desk = Desk("uitars")
    with pytest.raises(PolicyFailure, match="nobody answered"):
        ask(PersonPolicy(desk, 0.05))
    assert desk.turn is None

    def skip() -> None:
        while desk.turn is None:
            time.sleep(0.005)
        desk.skip(desk.turn.number)

    skipping = threading.Thread(target=skip)
    skipping.start()
    with pytest.raises(PolicyFailure, match="skipped"):
        ask(PersonPolicy(desk, 10))
    skipping.join(5)


def test_the_page_wants_the_token_and_says_what_is_wrong():
    desk = Desk("uitars")
    with serve(desk, 0) as address:
        with urllib.request.urlopen(address.partition("#")[0], timeout=10) as page:
            assert b"<!doctype html>" in page.read()
        turn = desk.put(episode(), png())
        assert call(address, "/turn", token="wrong")[0] == 401
        assert call(address, "/answer", {"turn": turn.number, "actions": [{"type": "wait"}]}, "")[0] == 401
        shown = next_turn(address)
        assert shown["instruction"] == "do it" and shown["screen"] == list(SCREEN) and shown["png"]
        assert call(address, f"/turn?seen={shown['turn']}")[0] == 204
        status, said = call(address, "/answer", {"turn": shown["turn"], "actions": [{"type": "fly"}]})
        assert status == 422 and "fly" in said["detail"]
        for odd in ({"turn": shown["turn"], "actions": 3}, {"turn": shown["turn"], "actions": "ab"}):
            assert call(address, "/answer", odd)[0] == 422
        assert not turn.answer.done()
        assert call(address, "/answer", {"turn": shown["turn"], "actions": [{"type": "wait"}]})[0] == 200
        assert turn.answer.result(1).endswith("wait()")
        port = int(address.rpartition(":")[2].partition("/")[0])
        with pytest.raises(PolicySetupError, match=str(port)), serve(desk, port):
            pass


def test_whole_episodes_are_played_and_recorded(tmp_path):
    """The engine, the page and the recording; the environment alone is scripted."""
    desk = Desk("uitars")

    def person(address: str) -> None:
        seen = 0
        for x in (3, 4):
            turn = next_turn(address, seen)
            seen = turn["turn"]
            click = {"type": "click", "x": x, "y": 9}
            assert call(address, "/answer", {"turn": seen, "actions": [click], "thought": "aha"})[0] == 200

    settings = RunSettings(k=1, record=True, rollout=RolloutConfig(grammar="uitars"))
    log = RunLog(tmp_path, {})
    with serve(desk, 0) as address:
        playing = threading.Thread(target=person, args=[address])
        playing.start()
        policy = PersonPolicy(desk, 20)
        asyncio.run(
            evaluate(instances("a"), policy, Leases(), log, settings, concurrency=1, progress=Progress(""))
        )
        playing.join(10)
    (run,) = log.runs
    log.close()
    assert run.success and run.steps == 2
    (trajectory,) = read_trajectories(tmp_path / "trajectories")
    assert [step.actions[0]["x"] for step in trajectory.steps] == [3, 4]
    assert trajectory.steps[0].thought == "aha"


def test_a_person_has_one_screen_and_an_address(capsys, tmp_path):
    options = PolicyOptions("person", person_port=0)
    env = environments_for(options, EnvPoolConfig("miniwob", num_envs=8, spares=2))
    assert (env.num_envs, env.spares) == (1, 0)
    assert options.settings()["policy"] == "person"

    async def opened() -> object:
        async with open_policy(options, RolloutConfig(), concurrency=1, directory=tmp_path) as policy:
            return policy

    assert isinstance(asyncio.run(opened()), PersonPolicy)
    assert "play at http://127.0.0.1:" in capsys.readouterr().out
