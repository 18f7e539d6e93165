"""Behaviour cloning: make a random Qwen2.5-VL answer like the demonstrations, on two CPU cores in minutes.

The loss is the usual next-token loss on the expert's answers, plus three auxiliary losses on the hidden
states of the image tokens, which exist during the warm start only:

* *where am I*: each image token names its own row and column. Qwen2.5-VL knows positions only relative to
  each other; a policy that starts from random weights needs thousands of steps to find out how to say an
  absolute one, and this tells it at every image token of every screenshot.
* *what am I*: each image token names the element it shows ("button ONE"), which teaches the vision tower to
  read.
* *am I the target*: one image token of the screenshot holds the pixel the expert acts on.

With these, the answer only has to look up the token that says "me" and read its row and column.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from verl_gui.rollout.conversation import first_messages, next_message

logger = logging.getLogger(__name__)

IGNORE = -100
BACKGROUND = 0
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Demonstration:
    """One episode of the expert.

    Attributes:
        instruction: what the agent was told.
        frames: the screenshots, one a turn, uint8 (H, W, 3), all of one size and a multiple of 28 each way.
        answers: the expert's answer to each screenshot, without the stop token.
        targets: the pixel (x, y) of the frame that the answer acts on, or None (typing, waiting).
        elements: what each frame shows: (name, (x0, y0, x1, y1) in pixels of the frame) of every element.
    """

    instruction: str
    frames: list[np.ndarray]
    answers: list[str]
    targets: list[tuple[float, float] | None]
    elements: list[list[tuple[str, Box]]]


def frame_to_patches(frames: Tensor, processor: Qwen2_5_VLProcessor) -> Tensor:
    """What the image processor makes of frames that need no resizing, for many frames at once.

    Args:
        frames: uint8 (N, H, W, 3); H and W multiples of ``patch_size * merge_size``.
        processor: gives patch size, merge size, mean and standard deviation.

    Returns:
        float32 (N * H/patch * W/patch, 3 * temporal_patch * patch * patch), equal to ``pixel_values``.
    """
    ip = processor.image_processor
    patch, merge, temporal = ip.patch_size, ip.merge_size, ip.temporal_patch_size
    n, height, width, _ = frames.shape
    if height % (patch * merge) or width % (patch * merge):
        raise ValueError(f"frame {width}x{height} is not a multiple of {patch * merge} pixels each way")
    mean = torch.tensor(ip.image_mean).view(1, 3, 1, 1)
    std = torch.tensor(ip.image_std).view(1, 3, 1, 1)
    x = frames.permute(0, 3, 1, 2).float()
    x = (x - mean * 255.0) / (std * 255.0)
    gh, gw = height // patch, width // patch
    x = x.view(n, 3, gh // merge, merge, patch, gw // merge, merge, patch)
    x = x.permute(
        0, 2, 5, 3, 6, 1, 4, 7
    )  # n, blocks down, blocks across, rows in block, columns in block, c, p, p
    x = x.unsqueeze(6).expand(*x.shape[:6], temporal, patch, patch)
    return x.reshape(n * gh * gw, 3 * temporal * patch * patch)


@dataclass(frozen=True)
class Example:
    """A demonstration as token ids. ``labels`` is IGNORE where the expert did not speak."""

    input_ids: Tensor  # (L,)
    labels: Tensor  # (L,)
    frames: Tensor  # uint8 (turns, H, W, 3)
    target_cells: Tensor  # (turns,) index of the image token acted on, or IGNORE
    cell_names: Tensor  # (turns, image tokens) index of the name of the element shown, 0 for none


def name_index(demos: Sequence[Demonstration], *, at_least: int = 20) -> dict[str, int]:
    """Numbers, from 1 on, for the element names, and the kinds they begin with, that are frequent enough."""
    counts: Counter[str] = Counter()
    for demo in demos:
        for shown in demo.elements:
            for name, _ in shown:
                counts.update({name, name.split(" ")[0]})
    return {name: i for i, name in enumerate(sorted(n for n, c in counts.items() if c >= at_least), 1)}


def cells_of(
    shown: Sequence[tuple[str, Box]], names: dict[str, int], rows: int, columns: int, cell: int
) -> list[int]:
    """For each cell in row order, the number of the element that covers most of it (at least a sixth).

    An element whose name has no number counts under its kind.
    """
    out = []
    for index in range(rows * columns):
        x, y = index % columns * cell, index // columns * cell
        best, best_area = BACKGROUND, cell * cell / 6
        for name, (x0, y0, x1, y1) in shown:
            area = max(0.0, min(x1, x + cell) - max(x0, x)) * max(0.0, min(y1, y + cell) - max(y0, y))
            number = names.get(name) or names.get(name.split(" ")[0])
            if area > best_area and number is not None:
                best, best_area = number, area
        out.append(best)
    return out


def encode(
    demo: Demonstration, processor: Qwen2_5_VLProcessor, system_prompt: str, names: dict[str, int]
) -> Example:
    """Turn a demonstration into ids, laid out as the agent loop lays out a conversation."""
    tokenizer = processor.tokenizer
    cell = processor.image_processor.patch_size * processor.image_processor.merge_size
    height, width = demo.frames[0].shape[:2]
    rows, columns = height // cell, width // cell
    messages = first_messages(system_prompt, demo.instruction, image=True)
    for turn, answer in enumerate(demo.answers):
        messages.append({"role": "assistant", "content": answer})
        if turn + 1 < len(demo.answers):
            messages.append(next_message(image=True))
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    text = text.replace("<|image_pad|>", "<|image_pad|>" * (rows * columns))
    ids = tokenizer(text, add_special_tokens=False).input_ids
    labels = [IGNORE] * len(ids)
    start = tokenizer("<|im_start|>assistant\n", add_special_tokens=False).input_ids
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    at = 0
    while at < len(ids):
        if ids[at : at + len(start)] == start:
            end = ids.index(stop, at)
            labels[at + len(start) : end + 1] = ids[at + len(start) : end + 1]
            at = end
        at += 1
    cells = []
    for target in demo.targets:
        if target is None:
            cells.append(IGNORE)
        else:
            column = min(max(int(target[0] // cell), 0), columns - 1)
            row = min(max(int(target[1] // cell), 0), rows - 1)
            cells.append(row * columns + column)
    shown = [cells_of(s, names, rows, columns, cell) for s in demo.elements]
    return Example(
        torch.tensor(ids),
        torch.tensor(labels),
        torch.from_numpy(np.stack(demo.frames)),
        torch.tensor(cells),
        torch.tensor(shown),
    )


class GroundingHeads(nn.Module):
    """The auxiliary heads on image tokens; thrown away after the warm start."""

    def __init__(self, hidden_size: int, rows: int, columns: int, names: int) -> None:
        super().__init__()
        self.row = nn.Linear(hidden_size, rows)
        self.column = nn.Linear(hidden_size, columns)
        self.name = nn.Linear(hidden_size, names)
        self.target = nn.Linear(hidden_size, 1)
        self.rows, self.columns = rows, columns

    def forward(self, early: Tensor, late: Tensor, targets: Tensor, names: Tensor) -> dict[str, Tensor]:
        """Losses.

        Args:
            early: (images, rows * columns, d) image tokens of an early layer, which name element and place.
            late: the same of a later layer, which points at the target.
            targets: (images,) cell acted on.
            names: (images, rows * columns) number of the element shown.
        """
        cells = torch.arange(self.rows * self.columns).repeat(len(early))
        losses = {
            "where": F.cross_entropy(self.row(late).flatten(0, 1), cells // self.columns)
            + F.cross_entropy(self.column(late).flatten(0, 1), cells % self.columns),
            "what": F.cross_entropy(self.name(early).flatten(0, 1), names.flatten()),
        }
        if (targets != IGNORE).any():
            losses["target"] = F.cross_entropy(self.target(late).squeeze(-1), targets, ignore_index=IGNORE)
        return losses


@dataclass
class CloningConfig:
    """How to train.

    Attributes:
        steps: optimiser steps.
        batch_size: screenshots a step, about (episodes of several turns count by their turns).
        lr: peak learning rate; linear warm-up, cosine decay to a tenth.
        warmup_steps: steps of the warm-up.
        early_layer, late_layer: language layers whose output the auxiliary heads read (0 = what goes in).
        aux_weight: weight of the auxiliary losses.
        seed: of the order of the examples.
        log_every: steps between log lines.
    """

    steps: int = 2000
    batch_size: int = 48
    lr: float = 1e-3
    warmup_steps: int = 100
    early_layer: int = 0
    late_layer: int = 3
    aux_weight: float = 0.3
    seed: int = 0
    log_every: int = 50


def collate(examples: Sequence[Example], pad_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ``input_ids``, ``labels`` and ``attention_mask``, each (B, L)."""
    length = max(len(e.input_ids) for e in examples)
    ids = torch.full((len(examples), length), pad_id)
    labels = torch.full((len(examples), length), IGNORE)
    mask = torch.zeros((len(examples), length), dtype=torch.long)
    for i, e in enumerate(examples):
        n = len(e.input_ids)
        ids[i, :n], labels[i, :n], mask[i, :n] = e.input_ids, e.labels, 1
    return ids, labels, mask


def batches(examples: Sequence[Example], batch_size: int, rng: random.Random) -> Sequence[Sequence[Example]]:
    """One epoch: shuffled, episodes of equally many turns together so that padding stays small."""
    by_turns: dict[int, list[Example]] = {}
    for e in examples:
        by_turns.setdefault(len(e.frames), []).append(e)
    out = []
    for turns, group in by_turns.items():
        rng.shuffle(group)
        size = max(1, batch_size // turns)
        out += [group[i : i + size] for i in range(0, len(group), size)]
    rng.shuffle(out)
    return out


def clone_behaviour(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    examples: Callable[[], Sequence[Example]],
    config: CloningConfig,
    *,
    names: int,
    on_log: Callable[[int, dict[str, float]], None] | None = None,
) -> None:
    """Train ``model`` in place.

    Args:
        model: the policy, float32.
        processor: its processor.
        examples: called before every epoch; may return more each time.
        config: how.
        names: how many numbers ``Example.cell_names`` uses, the background's included.
        on_log: called with the step and the mean losses since the last call.
    """
    rng = random.Random(config.seed)
    ip, tokenizer = processor.image_processor, processor.tokenizer
    image_id = model.config.image_token_id
    cell = ip.patch_size * ip.merge_size
    height, width = examples()[0].frames.shape[1:3]
    rows, columns = height // cell, width // cell
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        heads = GroundingHeads(model.config.text_config.hidden_size, rows, columns, names)
    parameters = [*model.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=config.lr, betas=(0.9, 0.98), weight_decay=0.01)
    grid = torch.tensor([[1, height // ip.patch_size, width // ip.patch_size]])
    model.train()
    queue: list[Sequence[Example]] = []
    sums: dict[str, float] = {}
    started = time.monotonic()
    for step in range(1, config.steps + 1):
        if not queue:
            queue = list(batches(examples(), config.batch_size, rng))
        batch = queue.pop()
        ids, labels, mask = collate(batch, tokenizer.pad_token_id)
        frames = torch.cat([e.frames for e in batch])
        targets = torch.cat([e.target_cells for e in batch])
        out = model.model(
            input_ids=ids,
            attention_mask=mask,
            pixel_values=frame_to_patches(frames, processor),
            image_grid_thw=grid.expand(len(frames), 3),
            mm_token_type_ids=(ids == image_id).int(),
            output_hidden_states=True,
            use_cache=False,
        )
        spoken = labels[:, 1:] != IGNORE
        logits = model.lm_head(out.last_hidden_state[:, :-1][spoken])
        answer = F.cross_entropy(logits, labels[:, 1:][spoken])
        early, late = (
            out.hidden_states[layer][ids == image_id].view(len(frames), rows * columns, -1)
            for layer in (config.early_layer, config.late_layer)
        )
        losses = heads(early, late, targets, torch.cat([e.cell_names for e in batch]))
        loss = answer + config.aux_weight * sum(losses.values())
        progress = step / config.steps
        scale = min(1.0, step / config.warmup_steps) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = config.lr * scale
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        for name, value in {"answer": answer, **losses}.items():
            sums[name] = sums.get(name, 0.0) + float(value.detach())
        if step % config.log_every == 0 or step == config.steps:
            means = {name: value / config.log_every for name, value in sums.items()}
            means["seconds"] = time.monotonic() - started
            sums = {}
            logger.info("step %d/%d %s", step, config.steps, {k: round(v, 4) for k, v in means.items()})
            if on_log is not None:
                on_log(step, means)
    model.eval()


@torch.no_grad()
def agreement(
    model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, examples: Sequence[Example]
) -> dict[str, float]:
    """How the policy does on demonstrations it has not seen, without playing.

    Returns:
        ``greedy``: share of episodes whose every token is the policy's first choice; ``sampled``: mean
        probability of sampling the expert's very words, a lower bound of success at temperature 1.
    """
    ip = processor.image_processor
    image_id = model.config.image_token_id
    height, width = examples[0].frames.shape[1:3]
    grid = torch.tensor([[1, height // ip.patch_size, width // ip.patch_size]])
    greedy, sampled = [], []
    for batch in batches(examples, 32, random.Random(0)):
        ids, labels, mask = collate(batch, processor.tokenizer.pad_token_id)
        frames = torch.cat([e.frames for e in batch])
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            pixel_values=frame_to_patches(frames, processor),
            image_grid_thw=grid.expand(len(frames), 3),
            mm_token_type_ids=(ids == image_id).int(),
            use_cache=False,
        ).logits[:, :-1]
        labels = labels[:, 1:]
        spoken = labels != IGNORE
        chosen = logits.log_softmax(-1).gather(-1, labels.clamp_min(0).unsqueeze(-1)).squeeze(-1)
        sampled += (chosen * spoken).sum(-1).exp().tolist()
        greedy += ((logits.argmax(-1) == labels) | ~spoken).all(-1).float().tolist()
    return {"greedy": sum(greedy) / len(greedy), "sampled": sum(sampled) / len(sampled)}
