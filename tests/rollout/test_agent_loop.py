"""The agent loop with the real processor and verl base class; only model and environment are scripted."""

import asyncio
import contextlib
import io
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from PIL import Image
from transformers import AutoProcessor

from verl_gui.actions import ActionType
from verl_gui.envs.base import EnvFailure, Observation, StepResult
from verl_gui.rollout.agent_loop import GuiAgentLoop
from verl_gui.rollout.trajectory import read_trajectories
from verl_gui.tasks import Task
from verl_gui.warmstart.tiny_model import build_tiny_policy

CLICK = "Thought: b\nAction: click(start_box='(28,56)')"
SCREEN = (56, 84)  # six image tokens


def png(shade):
    out = io.BytesIO()
    Image.new("RGB", SCREEN, (shade, 0, 0)).save(out, "PNG")
    return out.getvalue()


class ScriptedEnv:
    """Ends after ``turns`` steps with ``score``; fails at step ``fails_at``, ``faults`` times."""

    screen = SCREEN

    def __init__(self, turns=2, score=1.0, fails_at=None, faults=99):
        self.turns, self.score, self.fails_at, self.faults, self.acted = turns, score, fails_at, faults, []

    async def reset(self, task, *, seed=None):
        self.seed, self.acted = seed, []
        return Observation(png(0), {"instruction": "Click it."})

    async def step(self, actions):
        self.acted.append(list(actions))
        if self.fails_at == len(self.acted) and self.faults:
            self.faults -= 1
            raise EnvFailure("dead", "the desktop is gone")
        return StepResult(Observation(png(len(self.acted))), len(self.acted) >= self.turns)

    async def evaluate(self):
        return self.score


class ScriptedModel:
    """Answers with the texts (or token ids) given, each closed by the stop token; notes what it was asked."""

    def __init__(self, tokenizer, answers, stop=True):
        self.tokenizer, self.answers, self.stop, self.asked = tokenizer, list(answers), stop, []

    async def generate(self, request_id, *, prompt_ids, sampling_params, image_data, **_):
        self.asked.append((list(prompt_ids), list(image_data), dict(sampling_params)))
        answer = self.answers.pop(0)
        ids = (
            list(answer)
            if not isinstance(answer, str)
            else self.tokenizer(answer, add_special_tokens=False).input_ids
        )
        if self.stop and isinstance(answer, str):
            ids.append(self.tokenizer.convert_tokens_to_ids("<|im_end|>"))
        log_probs = [-0.5 - i / 100 for i in range(len(ids))]
        fields = {"min_global_steps": len(self.asked), "max_global_steps": len(self.asked)}
        return SimpleNamespace(token_ids=ids, log_probs=log_probs, extra_fields=fields)


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    _model, processor = build_tiny_policy([CLICK, "Click it."] * 3, hidden_size=64, layers=1)
    folder = tmp_path_factory.mktemp("policy")
    processor.save_pretrained(folder)
    return AutoProcessor.from_pretrained(folder)


def play(
    processor,
    env,
    answers,
    *,
    monkeypatch,
    stop=True,
    response_length=400,
    report=None,
    row=None,
    manager=None,
    **rollout,
):
    """One episode; returns its outputs and the model."""
    gui = {
        "env": {"backend": "scripted"},
        "rollout": {
            "max_steps": 4,
            "history_images": 4,
            "max_pixels": 4704,
            "system_prompt": "Act.",
            **rollout,
        },
        "report": {"dir": report, "train_every": 1},
    }
    config = OmegaConf.create(
        {
            "gui": gui,
            "data": {},
            "actor_rollout_ref": {
                "rollout": {
                    "prompt_length": 400,
                    "response_length": response_length,
                    "agent": {"agent_loop_manager_class": manager},
                }
            },
        }
    )

    class Pool:
        @contextlib.asynccontextmanager
        async def lease(self, *, task, seed):  # both known, so that the pool can prepare the environment
            assert task.id == "t" and seed == 7
            yield env

    monkeypatch.setattr("verl_gui.rollout.agent_loop.get_env_pool", lambda _: Pool())
    model = ScriptedModel(processor.tokenizer, answers, stop)

    async def run():
        loop = GuiAgentLoop(
            trainer_config=SimpleNamespace(config=config),
            server_manager=model,
            tokenizer=processor.tokenizer,
            processor=processor,
            dataset_cls=None,
            data_config=SimpleNamespace(config=config.data),
            hf_model_type="qwen2_5_vl",
        )
        prompt = {"task": Task(id="t").to_dict(), "seed": 7, "uid": "u", "session_id": 0, "global_steps": 3}
        return await loop.run({"temperature": 1.0}, **prompt, **(row or {}))

    return asyncio.run(run()), model


def sampled(output):
    return [token for token, mask in zip(output.response_ids, output.response_mask, strict=True) if mask]


def test_sampled_ids_are_the_trained_ids_and_the_turn_border_is_the_templates(processor, monkeypatch):
    env = ScriptedEnv(turns=2)
    (output,), _model = play(processor, env, [CLICK, CLICK], monkeypatch=monkeypatch)
    tokenizer = processor.tokenizer
    answer = [
        *tokenizer(CLICK, add_special_tokens=False).input_ids,
        tokenizer.convert_tokens_to_ids("<|im_end|>"),
    ]
    assert sampled(output) == answer * 2
    assert len(output.response_logprobs) == len(output.response_ids) == len(output.response_mask)
    assert env.seed == 7 and [a[0].type for a in env.acted] == [ActionType.CLICK] * 2
    messages = [
        {"role": "system", "content": "Act."},
        {"role": "user", "content": [{"type": "text", "text": "Click it."}, {"type": "image"}]},
        {"role": "assistant", "content": CLICK},
        {"role": "user", "content": [{"type": "image"}]},
        {"role": "assistant", "content": CLICK},
    ]
    text = processor.apply_chat_template(messages, tokenize=False)
    whole = processor(text=[text], images=output.multi_modal_data["images"], return_tensors="pt").input_ids[0]
    assert (
        output.prompt_ids + output.response_ids == whole.tolist()[:-1]
    )  # the newline after the last stop token
    assert tokenizer.decode(whole).count("<|im_start|>system") == 1
    assert output.reward_score == 1.0
    assert output.extra_fields["reward_extra_info"] == {"acc": 1.0, "score": 1.0, "format": 0.0}
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (1, 2)


def test_every_request_bans_the_picture_tokens(processor, monkeypatch):
    _, model = play(processor, ScriptedEnv(turns=1), [CLICK], monkeypatch=monkeypatch)
    banned = model.asked[0][2]["logit_bias"]
    assert processor.tokenizer.convert_tokens_to_ids("<|image_pad|>") in banned
    assert processor.tokenizer.convert_tokens_to_ids("<|vision_start|>") in banned
    assert set(banned.values()) == {-100.0}


def test_a_sampled_picture_token_cuts_the_answer_and_costs_the_penalty(processor, monkeypatch):
    tokenizer = processor.tokenizer
    pad = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    words = tokenizer("Thought: b", add_special_tokens=False).input_ids
    env = ScriptedEnv(turns=1, score=0.0)
    (output,), _ = play(processor, env, [[*words, pad, *words], CLICK], monkeypatch=monkeypatch)
    assert output.response_ids.count(pad) == 6  # of the second screenshot only
    assert sampled(output)[: len(words)] == words and pad not in sampled(output)
    assert output.reward_score == -0.5


def test_a_cut_answer_is_closed_without_training_on_the_closing(processor, monkeypatch):
    (output,), _ = play(processor, ScriptedEnv(turns=2), [CLICK, CLICK], monkeypatch=monkeypatch, stop=False)
    stop = processor.tokenizer.convert_tokens_to_ids("<|im_end|>")
    at = output.response_ids.index(stop)
    assert output.response_mask[at] == 0 and stop not in sampled(output)


def test_environment_faults_leave_no_row(processor, monkeypatch, tmp_path):
    env = ScriptedEnv(turns=3, fails_at=2)
    outputs, _ = play(processor, env, [CLICK] * 4, monkeypatch=monkeypatch, report=str(tmp_path))
    assert outputs == []
    records = list(read_trajectories(tmp_path))
    assert len(records) == 2  # both attempts
    assert all("the desktop is gone" in record.env_failure and record.score is None for record in records)


@pytest.mark.parametrize("validate", [False, True])
def test_an_episode_that_a_fault_ended_is_played_again_from_its_start(
    processor, monkeypatch, tmp_path, validate
):
    env = ScriptedEnv(turns=3, fails_at=2, faults=1)
    row = {"is_validation": validate}
    outputs, model = play(processor, env, [CLICK] * 5, monkeypatch=monkeypatch, report=str(tmp_path), row=row)
    assert outputs[-1].extra_fields["steps"] == 3 and outputs[-1].reward_score == 1.0
    assert model.asked[2][0] == model.asked[0][0]  # nothing of the lost attempt is in the prompt
    assert sorted(record.env_failure is None for record in read_trajectories(tmp_path)) == [False, True]


def test_a_malformed_answer_is_a_step_that_changes_nothing(processor, monkeypatch, tmp_path):
    env = ScriptedEnv(turns=1, score=1.0)
    (output,), _ = play(
        processor, env, ["I do not know", CLICK], monkeypatch=monkeypatch, report=str(tmp_path)
    )
    assert len(env.acted) == 1 and output.reward_score == 0.5
    (record,) = read_trajectories(tmp_path)
    assert record.steps[0].error and not record.steps[1].error


def test_the_step_limit_ends_the_episode_and_it_is_evaluated(processor, monkeypatch):
    env = ScriptedEnv(turns=9, score=0.0)
    (output,), model = play(processor, env, [CLICK] * 9, monkeypatch=monkeypatch, max_steps=3)
    assert len(model.asked) == 3 and output.reward_score == 0.0


@pytest.mark.parametrize(("limit", "answers"), [(2, 2), (99, 4)])
def test_a_tasks_own_step_limit_lowers_the_configured_one(processor, monkeypatch, limit, answers):
    env = ScriptedEnv(turns=99, score=0.0)
    outputs, model = play(processor, env, [CLICK] * 9, monkeypatch=monkeypatch, row={"max_steps": limit})
    assert len(model.asked) == answers == outputs[-1].extra_fields["steps"]


def test_a_narrow_window_gives_segments_that_show_what_the_model_saw(processor, monkeypatch):
    env = ScriptedEnv(turns=4)
    outputs, model = play(processor, env, [CLICK] * 4, monkeypatch=monkeypatch, history_images=2)
    assert len(outputs) == 3  # turns 1 and 2, turn 3, turn 4
    asked = [(ids, len(images)) for ids, images, _ in model.asked]
    assert [images for _, images in asked] == [1, 2, 2, 2]
    for output, (ids, _) in zip(outputs[1:], asked[2:], strict=True):
        assert output.prompt_ids == ids
    pad = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for output in outputs:
        shown = len(output.multi_modal_data["images"])
        assert (output.prompt_ids + output.response_ids).count(pad) == 6 * shown
    answers = sum(sum(output.response_mask) for output in outputs)
    assert answers == 4 * (len(processor.tokenizer(CLICK, add_special_tokens=False).input_ids) + 1)
    assert {output.reward_score for output in outputs} == {1.0}


def test_a_spent_token_budget_ends_the_episode_without_a_dangling_screenshot(processor, monkeypatch):
    length = len(processor.tokenizer(CLICK, add_special_tokens=False).input_ids) + 1
    env = ScriptedEnv(turns=4, score=0.0)
    (output,), _ = play(processor, env, [CLICK] * 4, monkeypatch=monkeypatch, response_length=length + 10)
    pad = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert len(output.response_ids) == length <= length + 10
    assert (
        (output.prompt_ids + output.response_ids).count(pad)
        == 6 * len(output.multi_modal_data["images"])
        == 6
    )


def test_clicks_land_where_the_model_saw_them(processor, monkeypatch):
    env = ScriptedEnv(turns=1)
    play(processor, env, [CLICK], monkeypatch=monkeypatch)
    assert (env.acted[0][0].x, env.acted[0][0].y) == (28.0, 56.0)
