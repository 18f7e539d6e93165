import numpy as np
import pytest
import torch
from PIL import Image

from verl_gui.warmstart.behaviour_cloning import (
    IGNORE,
    CloningConfig,
    Demonstration,
    agreement,
    cells_of,
    clone_behaviour,
    encode,
    frame_to_patches,
    name_index,
)
from verl_gui.warmstart.tiny_model import build_tiny_policy

ANSWERS = [
    "Thought: button ONE\nAction: click(start_box='(14,42)')",
    "Thought: text\nAction: type(content='Ann')",
]
TEXTS = ["Click button ONE. system user assistant", *ANSWERS] * 3


def demo(turns=1, seed=0):
    rng = np.random.default_rng(seed)
    frames = [rng.integers(0, 255, (84, 56, 3), dtype=np.uint8) for _ in range(turns)]
    elements = [[("button ONE", (0.0, 28.0, 28.0, 56.0))]] * turns
    return Demonstration("Click button ONE.", frames, ANSWERS[:turns], [(14.0, 42.0), None][:turns], elements)


@pytest.fixture(scope="module")
def policy():
    return build_tiny_policy(TEXTS, hidden_size=64, layers=1)


def test_patches_equal_those_of_the_image_processor(policy):
    _, processor = policy
    frames = demo(2).frames
    images = [Image.fromarray(frame) for frame in frames]
    expected = processor.image_processor(images=images, return_tensors="pt").pixel_values
    assert torch.equal(frame_to_patches(torch.from_numpy(np.stack(frames)), processor), expected)


def test_only_the_experts_words_and_stop_tokens_are_labels(policy):
    _, processor = policy
    tokenizer = processor.tokenizer
    example = encode(demo(2), processor, "", {"button ONE": 1})
    spoken = tokenizer.decode(example.labels[example.labels != IGNORE])
    assert spoken == "".join(f"{answer}<|im_end|>" for answer in ANSWERS)
    assert (example.input_ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")).sum() == 2 * 6
    assert example.target_cells.tolist() == [2, IGNORE]  # 2 columns: pixel (14, 42) is in the second row


def test_the_layout_is_that_of_the_processor(policy):
    _, processor = policy
    one = demo(1)
    messages = [
        {"role": "system", "content": "Act."},
        {
            "role": "user",
            "content": [{"type": "text", "text": one.instruction}, {"type": "image", "image": None}],
        },
        {"role": "assistant", "content": one.answers[0]},
    ]
    text = processor.apply_chat_template(messages, tokenize=False)
    ids = processor(text=[text], images=[Image.fromarray(one.frames[0])], return_tensors="pt").input_ids[0]
    assert encode(one, processor, "Act.", {}).input_ids.tolist() == ids.tolist()


def test_cells_are_named_after_what_covers_most_of_them():
    names = {"button ONE": 1, "text": 2}
    shown = [
        ("button ONE", (0.0, 0.0, 28.0, 10.0)),
        ("text hello", (28.0, 0.0, 56.0, 28.0)),
        ("link x", (0.0, 28.0, 56.0, 56.0)),
    ]
    assert cells_of(shown, names, 2, 2, 28) == [1, 2, 0, 0]


def test_rare_names_count_under_their_kind():
    shown = [[(f"text {i}", (0.0, 0.0, 1.0, 1.0))] for i in range(5)]
    demos = [Demonstration("", [], [], [], [s]) for s in shown]
    assert name_index(demos, at_least=5) == {"text": 1}


def train(processor, steps):
    """Mean answer losses of the first and the second half, and the agreement afterwards."""
    model, _ = build_tiny_policy(TEXTS, hidden_size=64, layers=1)
    examples = [encode(demo(2, seed), processor, "", {"button ONE": 1}) for seed in range(4)]
    losses = []
    config = CloningConfig(
        steps=steps, batch_size=8, lr=5e-3, warmup_steps=5, log_every=steps // 2, late_layer=1
    )
    clone_behaviour(
        model,
        processor,
        lambda: examples,
        config,
        names=2,
        on_log=lambda _, loss: losses.append(loss["answer"]),
    )
    return losses, agreement(model, processor, examples)


def test_cloning_learns(policy):
    (first, last), found = train(policy[1], 50)
    assert last < 0.5 * first
    assert found["sampled"] > 1e-6  # an untrained policy is below 1e-80


def test_the_same_seed_trains_the_same_policy(policy):
    assert train(policy[1], 4) == train(policy[1], 4)
