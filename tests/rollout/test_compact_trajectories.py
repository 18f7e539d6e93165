"""Screenshots that travel encoded give the training rows that verl's own manager gives."""

import copy
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_agent_loop import CLICK, ScriptedEnv, play, png, processor  # noqa: F401 (processor: a fixture)
from transformers import Qwen2_5_VLConfig

from verl_gui.envs.base import Observation
from verl_gui.models.encoded_images import IMAGES, EncodedRowError, with_pixels
from verl_gui.models.processor import bind_rope_index
from verl_gui.models.screenshot import Screenshot
from verl_gui.rollout.agent_loop_manager import (
    COMPACT,
    AgentLoopWorkerTQ,
    CompactAgentLoopManager,
    CompactAgentLoopWorker,
)


class StillEnv(ScriptedEnv):
    """Shows the same screenshot at every step."""

    async def step(self, actions):
        result = await super().step(actions)
        return replace(result, observation=Observation(png(0)))


@pytest.fixture
def episode(processor, monkeypatch):  # noqa: F811
    def run(manager, env=None, **rollout):
        env = env or ScriptedEnv(turns=3)
        return play(processor, env, [CLICK] * 4, monkeypatch=monkeypatch, manager=manager, **rollout)

    return run


@pytest.fixture
def row(processor):  # noqa: F811
    """The multi-modal inputs and positions that a worker stores for an output."""

    names = ("image_pad", "video_pad", "vision_start")
    image, video, start = processor.tokenizer.convert_tokens_to_ids([f"<|{name}|>" for name in names])
    bound = copy.copy(processor)
    bound.config = Qwen2_5_VLConfig(image_token_id=image, video_token_id=video, vision_start_token_id=start)
    bind_rope_index(bound)

    def of(worker_class, output):
        worker = object.__new__(worker_class)
        worker.processor, worker.tokenizer = bound, processor.tokenizer
        ids = torch.tensor([output.prompt_ids + output.response_ids])
        inputs = worker._compute_multi_modal_inputs(output, ids[0])
        return inputs, worker._compute_position_ids(ids, torch.ones_like(ids), inputs)

    return of


VERLS_WORKER = AgentLoopWorkerTQ.__ray_metadata__.modified_class


def test_the_rows_are_those_of_verls_manager(episode, row):
    (stock,), _ = episode(None)
    (compact,), _ = episode(COMPACT)
    assert compact.prompt_ids == stock.prompt_ids and compact.response_ids == stock.response_ids
    assert compact.response_mask == stock.response_mask
    assert all(isinstance(image, Screenshot) for image in compact.multi_modal_data["images"])
    assert not any(isinstance(image, Screenshot) for image in stock.multi_modal_data["images"])

    (expected, positions), (inputs, own_positions) = (
        row(VERLS_WORKER, stock),
        row(CompactAgentLoopWorker, compact),
    )
    assert "pixel_values" not in inputs and torch.equal(own_positions, positions)
    (made,) = with_pixels([inputs])
    expected.pop("mm_token_type_ids", None)
    assert made.keys() == expected.keys()
    assert all(
        torch.equal(made[key], expected[key]) and made[key].dtype == expected[key].dtype for key in made
    )


def test_the_engine_gets_the_same_pictures(episode):
    _, stock = episode(None)
    _, compact = episode(COMPACT)
    for (ids, pictures, _), (own_ids, screenshots, _) in zip(stock.asked, compact.asked, strict=True):
        assert own_ids == ids
        received = pickle.loads(pickle.dumps(screenshots))
        assert [picture.tobytes() for picture in received] == [picture.tobytes() for picture in pictures]


def test_a_narrow_window_and_a_cut_prompt_work_alike(episode, row):
    stock, _ = episode(None, ScriptedEnv(turns=4), history_images=2)
    compact, _ = episode(COMPACT, ScriptedEnv(turns=4), history_images=2)
    assert len(stock) == len(compact) == 3
    for one, other in zip(stock, compact, strict=True):
        assert one.prompt_ids + one.response_ids == other.prompt_ids + other.response_ids
        (made,) = with_pixels([row(CompactAgentLoopWorker, other)[0]])
        assert torch.equal(made["pixel_values"], row(VERLS_WORKER, one)[0]["pixel_values"])


def test_a_screen_that_stays_as_it_is_is_stored_once(episode, row):
    (changing,), _ = episode(COMPACT)
    (still,), _ = episode(COMPACT, StillEnv(turns=3))
    assert len({id(image) for image in still.multi_modal_data["images"]}) == 1
    inputs, _ = row(CompactAgentLoopWorker, still)
    assert len(inputs["image_grid_thw"]) == 3 and len(inputs[IMAGES]) == len(png(0))
    assert len(row(CompactAgentLoopWorker, changing)[0][IMAGES]) > 2 * len(png(0))


def test_another_agent_loops_pictures_stay_verls(episode, row):
    (stock,), _ = episode(None)
    assert "pixel_values" in row(CompactAgentLoopWorker, stock)[0]


def test_another_models_processor_is_refused_with_the_key_to_remove(episode):
    (compact,), _ = episode(COMPACT)
    worker = object.__new__(CompactAgentLoopWorker)
    worker.processor = SimpleNamespace(image_processor=SimpleNamespace())
    with pytest.raises(EncodedRowError, match=r"SimpleNamespace.*agent_loop_manager_class"):
        worker._compute_multi_modal_inputs(compact, None)


def test_the_manager_starts_workers_of_its_kind(monkeypatch):
    monkeypatch.setattr("verl_gui.rollout.agent_loop_manager.AgentLoopManagerTQ.__init__", lambda self: None)
    workers = CompactAgentLoopManager().agent_loop_workers_class
    assert issubclass(workers.__ray_metadata__.modified_class, CompactAgentLoopWorker)
    assert CompactAgentLoopManager.__module__ + "." + CompactAgentLoopManager.__qualname__ == COMPACT
