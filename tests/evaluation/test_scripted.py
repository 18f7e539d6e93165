import asyncio
import random

import pytest
from in_process import SCREEN, png

from verl_gui.actions import ActionType, parse
from verl_gui.config import RolloutConfig
from verl_gui.envs.base import Observation, StepResult
from verl_gui.envs.pool_state import EnvPoolConfig
from verl_gui.evaluation.expert_env import BACKEND, ExpertEnv
from verl_gui.evaluation.policies import PolicyFailure, PolicyOptions, PolicySetupError, open_policy
from verl_gui.evaluation.policies.scripted import ExpertPolicy, RandomPolicy
from verl_gui.evaluation.policies.spec import environments_for
from verl_gui.rollout.episode import Episode
from verl_gui.tasks import Task


class StillEnv:
    """A screen on which nothing happens."""

    def __init__(self, size=(800, 600)):
        self.screen, self.acted, self.closed = tuple(size), [], False

    def reset(self, task, *, seed=None):
        return Observation(png(0, self.screen), {"instruction": task.instruction})

    def step(self, actions):
        self.acted.append(list(actions))
        return StepResult(Observation(png(1, self.screen)), any(a.type.is_terminal for a in actions))

    def evaluate(self):
        return float(len(self.acted) > 1)

    def close(self):
        self.closed = True


def answer(policy, observation, screen=(800, 600), rng=None):
    episode = Episode(Task("t"), "do it", screen, policy.look(observation.screenshot, screen).frame)
    return asyncio.run(policy.answer(episode, observation, rng or random.Random(1))).text


def test_random_clicks_are_well_formed_and_all_over_the_screen():
    policy, rng = RandomPolicy("uitars"), random.Random(3)
    points = []
    for _ in range(300):
        text = answer(policy, Observation(png()), SCREEN, rng)
        (action,) = parse(text, frame=SCREEN, screen=SCREEN).actions
        assert action.type is ActionType.CLICK
        points.append((action.x, action.y))
    assert min(x for x, _ in points) < 5 and max(x for x, _ in points) > 50 and len(set(points)) > 200


def test_the_expert_plays_the_solution_in_the_task_file():
    env, policy = ExpertEnv(f"{__name__}:StillEnv"), ExpertPolicy("uitars")
    observation = env.reset(Task("mousepad-append", "Append"))
    said = []
    for _ in range(10):
        text = answer(policy, observation)
        result = env.step(parse(text, frame=env.screen, screen=env.screen).actions)
        said.append(text)
        if result.terminated:
            break
        observation = result.observation
    assert len(said) == 4 and "bread" in said[1] and "finished" in said[-1] and env.evaluate() == 1.0
    env.close()
    assert env._env.closed


def test_a_solution_waits_for_the_window_it_needs():
    class Windows:
        def __init__(self):
            self.counts = [1, 1, 2]

        def windows(self):
            return [None] * (self.counts.pop(0) if len(self.counts) > 1 else self.counts[0])

    env, policy = ExpertEnv(f"{__name__}:StillEnv"), ExpertPolicy("uitars")
    env._env._windows = Windows()
    observation = env.reset(Task("mousepad-save-as", "Save"))
    said = []
    while not (said and "finished" in said[-1]):
        said.append(answer(policy, observation))
        result = env.step(parse(said[-1], frame=env.screen, screen=env.screen).actions)
        observation = result.observation
    assert env._env._windows.counts == [2]  # it looked again and again, and acted when both were there
    assert sum("wait()" in text for text in said) >= 2
    env._env._windows.counts = [0]
    observation = env.reset(Task("mousepad-save-as", "Save"))
    with pytest.raises(PolicyFailure, match="does not come"):
        for _ in range(30):
            answer(policy, observation)
            observation = env.step([]).observation


def test_an_unknown_task_is_no_failed_attempt():
    env, policy = ExpertEnv(f"{__name__}:StillEnv"), ExpertPolicy("uitars")
    with pytest.raises(PolicyFailure, match="no solution is known of task 'nobody-knows'"):
        answer(policy, env.reset(Task("nobody-knows", "?")))
    with pytest.raises(PolicyFailure, match="no expert speaks"):
        answer(policy, Observation(png()))


def test_a_solution_that_ends_before_the_episode():
    env, policy = ExpertEnv(f"{__name__}:StillEnv"), ExpertPolicy("uitars")
    env.reset(Task("mousepad-append", "Append"))
    for _ in range(4):
        result = env.step([])
    with pytest.raises(PolicyFailure, match="the solution is over"):
        answer(policy, result.observation)


def test_the_expert_gets_environments_that_whisper():
    env = EnvPoolConfig("miniwob", num_envs=3, options={"screen": [168, 224]})
    wrapped = environments_for(PolicyOptions("expert", expert_grid=7), env)
    assert (wrapped.backend, wrapped.num_envs) == (BACKEND, 3)
    assert wrapped.options == {"backend": "miniwob", "grid": 7, "options": {"screen": [168, 224]}}
    assert environments_for(PolicyOptions("random"), env) is env


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (PolicyOptions("/nowhere"), "no config.json in it"),
        (PolicyOptions("http://localhost:1/v1"), "needs --model"),
    ],
)
def test_policies_that_cannot_be_used(options, why, tmp_path):
    async def use():
        async with open_policy(options, RolloutConfig(), concurrency=1, directory=tmp_path):
            pass

    with pytest.raises(PolicySetupError, match=why):
        asyncio.run(use())


def test_settings_hold_no_secret(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    settings = PolicyOptions("https://host/v1", model="m", temperature=0.5).settings()
    assert settings == {"policy": "https://host/v1", "model": "m", "temperature": 0.5, "top_p": 1.0}
