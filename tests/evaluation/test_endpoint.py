"""An OpenAI-compatible endpoint over real HTTP."""

import asyncio
import base64
import io
import random

import openai
import pytest
from in_process import SCREEN, Leases, instances, png
from model_server import CLICK, ModelServer
from PIL import Image

from verl_gui.config import RolloutConfig
from verl_gui.envs.base import Observation
from verl_gui.evaluation.engine import RunSettings, evaluate
from verl_gui.evaluation.policies import PolicyFailure, PolicyOptions, PolicySetupError, open_policy
from verl_gui.evaluation.policies.endpoint import EndpointConfig, EndpointPolicy
from verl_gui.evaluation.progress import Progress
from verl_gui.evaluation.runs import RunLog
from verl_gui.rollout.context import window_messages
from verl_gui.rollout.episode import Episode
from verl_gui.tasks import Task

ROLLOUT = RolloutConfig(system_prompt="Act.", min_pixels=784, max_pixels=56 * 84, max_new_tokens=40)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setattr(openai._base_client, "MAX_RETRY_DELAY", 0.02)


def ask(server, episode=None, rollout=ROLLOUT, **config):
    async def once():
        policy = EndpointPolicy(EndpointConfig(server.url, "m", **config), rollout, rollout.system_prompt)
        try:
            shown = episode or begun(policy)
            return await policy.answer(shown, Observation(png()), random.Random(1))
        finally:
            await policy.close()

    return asyncio.run(once())


def begun(policy, turns=1):
    """An episode with ``turns`` screenshots, all but the last answered."""
    episode = Episode(Task("t"), instruction="Click it.")
    episode.images = [policy.look(png(i), SCREEN).image for i in range(turns)]
    episode.answers = [CLICK] * (turns - 1)
    return episode


def test_an_answer_and_what_it_cost():
    with ModelServer() as server:
        answer = ask(server, api_key="secret", temperature=0.7)
    assert (answer.text, answer.prompt_tokens, answer.sampled_tokens) == (CLICK, 50, 7)
    (request,) = server.requests
    assert server.keys == ["Bearer secret"]
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("m", 0.7, 40)


def test_the_conversation_is_that_of_training():
    with ModelServer() as server:
        rollout = RolloutConfig(system_prompt="Act.", history_images=2, max_pixels=56 * 84)
        policy = EndpointPolicy(EndpointConfig(server.url, "m"), rollout, "Act.")
        episode = begun(policy, turns=4)
        ask(server, episode, rollout)
    sent = server.requests[0]["messages"]
    expected, _ = window_messages("Act.", "Click it.", episode.images, episode.answers, history_images=2)
    assert [m["role"] for m in sent] == [m["role"] for m in expected]
    pictures = [
        part["image_url"]["url"]
        for message in sent
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image_url"
    ]
    assert pictures == episode.images[-2:]
    shown = base64.b64decode(pictures[-1].removeprefix("data:image/png;base64,"))
    assert shown == png(3)  # the very screenshot
    assert [m["content"] for m in sent if m["role"] == "assistant"] == [CLICK] * 3


@pytest.mark.parametrize("fault", [429, 500, 503, "drop", "hang"])
def test_passing_faults_are_tried_again(fault):
    with ModelServer([fault, fault]) as server:
        assert ask(server, timeout_s=0.5, max_retries=3).text == CLICK
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (500, "InternalServerError"),
        ("hang", "Timeout"),
        ("drop", "Connection"),
        ("garbage", "no choices|JSON|no answer"),
        ("empty", "no choices"),
        (400, "refused the request"),
    ],
)
def test_lasting_faults_are_failures_of_the_policy(fault, why):
    with ModelServer([fault] * 5) as server, pytest.raises(PolicyFailure, match=why):
        ask(server, timeout_s=0.3, max_retries=1)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_stranger_is_told_at_once(status):
    with ModelServer([status] * 5) as server, pytest.raises(PolicySetupError, match="refused 'm'"):
        ask(server)
    assert len(server.requests) == 1


def test_a_full_context_is_no_fault():
    with ModelServer([(400, "This model's maximum context length is 8 tokens")]) as server:
        assert ask(server) is None


def test_nobody_there():
    with pytest.raises(PolicyFailure, match="Connection"):
        policy_server = ModelServer()
        policy_server._http.server_close()
        ask(policy_server, max_retries=0)


def test_large_screens_are_resized_before_they_are_sent_and_the_frame_is_what_is_sent():
    with ModelServer() as server:
        policy = EndpointPolicy(EndpointConfig(server.url, "m"), RolloutConfig(max_pixels=100_000), "Act.")
        view = policy.look(png(0, (1920, 1080)), (1920, 1080))
    sent = Image.open(io.BytesIO(base64.b64decode(view.image.partition(",")[2])))
    assert sent.size == view.frame and view.frame[0] % 28 == view.frame[1] % 28 == 0
    assert sent.size[0] * sent.size[1] <= 100_000


def test_clicks_land_where_the_model_saw_them(tmp_path):
    """Half the size is seen, so (28, 56) in the picture is (56, 112) on the screen."""
    acted = []

    class BigLeases(Leases):
        def lease(self, **row):
            found = super().lease(**row)

            class Wrapped:
                async def __aenter__(self):
                    env = await found.__aenter__()
                    env.screen = (112, 168)
                    step = env.step

                    async def noted(actions):
                        acted.extend(actions)
                        result = await step(actions)
                        return type(result)(Observation(png(1, (112, 168))), result.terminated)

                    env.step = noted
                    return env

                async def __aexit__(self, *args):
                    return await found.__aexit__(*args)

            return Wrapped()

    async def run(server):
        log = RunLog(tmp_path, {})
        options = PolicyOptions(server.url, model="m")
        async with open_policy(options, ROLLOUT, concurrency=1, directory=tmp_path) as policy:
            await evaluate(
                instances("a"),
                policy,
                BigLeases(),
                log,
                RunSettings(k=1, rollout=ROLLOUT),
                concurrency=1,
                progress=Progress("t", io.StringIO()),
            )
        log.close()
        return log.runs

    with ModelServer() as server:
        (result,) = asyncio.run(run(server))
    assert result.score == 1.0 and result.prompt_tokens == 100
    assert (acted[0].x, acted[0].y) == (56.0, 112.0)
