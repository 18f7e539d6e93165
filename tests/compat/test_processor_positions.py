import importlib.util
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import REPOSITORY, load_file, released_file
from PIL import Image

from verl_gui.compat import processor_positions

POLICY = REPOSITORY / "recipes/quickstart/policy"
BRIDGE = processor_positions.BRIDGE
PICTURE = "<|vision_start|><|image_pad|><|vision_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


@pytest.fixture(scope="module")
def released_processor():
    return load_file(released_file(BRIDGE)).hf_processor(str(POLICY))


@pytest.fixture(params=["bridge", "patch"])
def hf_processor(request, tmp_path, monkeypatch):
    """verl's function with the bridge and, in a second run, with its twin patch."""
    if request.param == "bridge":
        module = load_file(released_file(BRIDGE))
        BRIDGE.apply(module)
        return module.hf_processor
    folder = tmp_path / "verl/utils/tokenizer"
    folder.mkdir(parents=True)
    (folder / "tokenizer.py").write_bytes(released_file(BRIDGE).read_bytes())
    subprocess.run(["git", "apply", str(REPOSITORY / BRIDGE.twin)], cwd=tmp_path, check=True, timeout=30)
    for name in ("rope_index", "rope_binding", "tokenizer"):
        full_name = f"verl.utils.tokenizer.{name}"
        spec = importlib.util.spec_from_file_location(full_name, folder / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, full_name, module)
        spec.loader.exec_module(module)
    return module.hf_processor


def inputs(processor, text, images=1, videos=0):
    picture = Image.new("RGB", (84, 56))
    clip = torch.zeros(4, 3, 56, 56, dtype=torch.uint8)
    return processor(
        text=[text],
        images=[picture] * images or None,
        videos=[clip] * videos or None,
        return_tensors="pt",
    )


def positions(processor, batch, **changed):
    names = ("mm_token_type_ids", "image_grid_thw", "video_grid_thw", "attention_mask", "second_per_grid_ts")
    given = {name: batch[name] for name in names if name in batch}
    return processor.get_rope_index(batch["input_ids"], **{**given, **changed})


@pytest.mark.parametrize(
    ("text", "images", "videos"),
    [(f"a{PICTURE}b", 1, 0), (f"a{PICTURE}b{PICTURE}", 2, 0), ("a b c", 0, 0), (f"{PICTURE}a{VIDEO}b", 1, 1)],
    ids=["one", "two", "none", "video"],
)
def test_gives_what_transformers_gives(hf_processor, released_processor, text, images, videos):
    processor = hf_processor(str(POLICY))
    batch = inputs(processor, text, images, videos)
    got, delta = positions(processor, batch)
    expected, expected_delta = positions(released_processor, batch)
    assert torch.equal(got, expected) and torch.equal(delta, expected_delta)


def test_a_sampled_placeholder_and_missing_types_are_no_error(hf_processor, released_processor):
    processor = hf_processor(str(POLICY))
    batch = inputs(processor, f"ab{PICTURE}c")
    sampled = torch.tensor([[processor.image_token_id, 5]])
    batch["input_ids"] = torch.cat([batch["input_ids"], sampled], dim=1)
    del batch["mm_token_type_ids"], batch["attention_mask"]
    types = (batch["input_ids"] == processor.image_token_id).int()
    with pytest.raises(StopIteration):
        positions(released_processor, batch, mm_token_type_ids=types)
    with pytest.raises(TypeError, match="mm_token_type_ids"):
        positions(released_processor, batch)
    got, _ = positions(processor, batch)
    assert got.shape == (3, 1, batch["input_ids"].shape[1])
    last = got[:, 0, -3:]
    assert torch.equal(last - last[:, :1], torch.arange(3).expand(3, -1))


def test_verl_passes_the_seconds_of_videos_on(hf_processor):
    processor = hf_processor(str(POLICY))
    batch = inputs(processor, f"a{VIDEO}b", 0, 1)
    batch["second_per_grid_ts"] = torch.tensor([4.0])  # a frame every two seconds, two frames a grid
    rows = verl_position_ids(processor, batch)
    frames = rows[0, 1][batch["input_ids"][0] == processor.video_token_id].unique()
    rate = processor.config.vision_config.tokens_per_second
    assert frames.diff().tolist() == [4 * rate]


def verl_position_ids(processor, batch):
    """(1, 4, L) as verl's agent loop worker makes them."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker

    return AgentLoopWorker._compute_position_ids(
        SimpleNamespace(processor=processor), batch["input_ids"], batch["attention_mask"], dict(batch)
    )


def test_verls_agent_loop_gets_four_rows_of_text_too(hf_processor):
    processor = hf_processor(str(POLICY))
    for text, images in ((f"a{PICTURE}b", 1), ("a b", 0)):
        batch = inputs(processor, text, images)
        rows = verl_position_ids(processor, batch)
        length = batch["input_ids"].shape[1]
        assert rows.shape == (1, 4, length) and rows[0, 0].tolist() == list(range(length))
        assert images or (rows == rows[:, :1]).all()


def test_a_processor_can_be_pickled_and_saved(hf_processor, tmp_path):
    processor = hf_processor(str(POLICY))
    if "verl_gui" in processor.get_rope_index.func.__module__:  # the patch's module is gone after the test
        copy = pickle.loads(pickle.dumps(processor))
        batch = inputs(copy, f"a{PICTURE}b")
        assert torch.equal(positions(copy, batch)[0], positions(processor, batch)[0])
    processor.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved/processor_config.json").exists()


def test_one_sequence_at_a_time(hf_processor):
    processor = hf_processor(str(POLICY))
    with pytest.raises(ValueError, match=r"expected one sequence \(1, L\), got \(2, 3\)"):
        processor.get_rope_index(torch.ones(2, 3, dtype=torch.long))


def test_a_foreign_tokenizer_is_refused(hf_processor):
    processor = hf_processor(str(POLICY))
    binding = sys.modules[processor.get_rope_index.func.__module__]
    processor.config.image_token_id = 3
    with pytest.raises(ValueError, match=r"image_token_id: the processor writes \d+, .* reads 3"):
        binding.bind_rope_index(processor)


def test_the_names_that_verl_has_imported_already_are_replaced():
    from verl.utils import hf_processor as of_package
    from verl.utils.tokenizer.tokenizer import hf_processor as of_module

    assert of_package is of_module and hasattr(of_module, "__wrapped__")


def test_the_patch_holds_the_same_code():
    """What is tested here is what is sent upstream."""
    patch = (REPOSITORY / BRIDGE.twin).read_text()
    for ours, theirs in (("rope_index", "rope_index"), ("processor", "rope_binding")):
        added = re.search(rf"\+\+\+ b/verl/utils/tokenizer/{theirs}\.py\n@@.*\n((?:\+.*\n)+)", patch)
        code = "".join(line[1:] + "\n" for line in added.group(1).splitlines())
        source = (REPOSITORY / f"verl_gui/models/{ours}.py").read_text()
        assert code.endswith(source.replace("verl_gui.models.rope_index", "verl.utils.tokenizer.rope_index"))
