"""As many placeholders as the processor gives a picture, expanded once, without looking at its pixels."""

from types import SimpleNamespace

import pytest
from layouts import cases
from PIL import Image
from verl.workers.rollout.utils import qwen2_5_vl_dedup_image_tokens

from verl_gui.models.rope_index import VisionTokenIds, engine_position_ids
from verl_gui.rollout.agent_loop import GuiAgentLoop
from verl_gui.rollout.sequence import placeholder_runs
from verl_gui.warmstart.tiny_model import build_tiny_policy


@pytest.fixture(scope="module")
def processor():
    return build_tiny_policy(["Click it."], hidden_size=64, layers=1)[1]


@cases("tokens")
def test_count_of_placeholders(processor, case):
    pixels = {name: case[name] for name in ("min_pixels", "max_pixels")}
    screenshot = Image.new("RGB", tuple(case["screen"]))
    loop = SimpleNamespace(processor=processor, pixels=pixels)
    each = GuiAgentLoop._picture_tokens(loop, screenshot)
    assert each * case["images"] == case["pads"]

    text = "a<|vision_start|><|image_pad|><|vision_end|>b"
    batch = processor(text=[text], images=[screenshot], return_tensors="pt", **pixels)
    turn = batch["input_ids"][0].tolist()
    assert placeholder_runs(turn, {processor.image_token_id}) == [each]
    assert int(batch["image_grid_thw"].prod()) // 4 == each
    ids, grids = turn * case["images"], batch["image_grid_thw"].expand(case["images"], 3)
    # The engine expands one placeholder a picture itself, so that is what verl hands it.
    for_engine = qwen2_5_vl_dedup_image_tokens(ids, processor)
    assert for_engine.count(processor.image_token_id) == case["images"]

    names = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>")
    vision_ids = VisionTokenIds(*processor.tokenizer.convert_tokens_to_ids(list(names)))
    positions = engine_position_ids(ids, grids, ids=vision_ids)
    step = max(grids[0, 1:].tolist()) // 2 + len(turn) - each
    assert positions[1, -1] == case["images"] * step - 1 and positions[0, -1] == len(ids) - 1
