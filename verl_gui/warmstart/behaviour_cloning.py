"""Behaviour cloning: make a random Qwen2.5-VL answer like the demonstrations, on two CPU cores in minutes.

The loss is the usual next-token loss on the expert's answers, plus two auxiliary losses on the hidden states
of the image tokens, which exist during the warm start only:

* *where am I*: each image token names its own row and column. Qwen2.5-VL knows positions only relative to
  each other; a policy that starts from random weights needs thousands of steps to find out how to say an
  absolute one, and this tells it at every image token of every screenshot.
* *am I the target*: one image token of the screenshot holds the pixel the expert acts on.

With both, the answer only has to look up the token that says "me" and read its row and column.
"""

from __future__ import annotations

import logging
import math
import random
import time
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


@dataclass(frozen=True)
class Demonstration:
    """One episode of the expert.

    Attributes:
        instruction: what the agent was told.
        frames: the screenshots, one a turn, uint8 (H, W, 3), all of one size and a multiple of 28 each way.
        answers: the expert's answer to each screenshot, without the stop token.
        targets: the pixel (x, y) of the frame that the answer acts on, or None (typing, waiting).
    """

    instruction: str
    frames: Sequence[np.ndarray]
    answers: Sequence[str]
    targets: Sequence[tuple[float, float] | None]


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
    x = x.permute(0, 2, 5, 3, 6, 1, 4, 7)  # n, blocks down, blocks across, rows in block, columns in block, c, p, p
    x = x.unsqueeze(6).expand(*x.shape[:6], temporal, patch, patch)
    return x.reshape(n * gh * gw, 3 * temporal * patch * patch)


@dataclass(frozen=True)
class Example:
    """A demonstration as token ids. ``labels`` is IGNORE where the expert did not speak."""

    input_ids: Tensor  # (L,)
    labels: Tensor  # (L,)
    frames: Tensor  # uint8 (turns, H, W, 3)
    target_cells: Tensor  # (turns,) index of the image token acted on, or IGNORE


def encode(demo: Demonstration, processor: Qwen2_5_VLProcessor, system_prompt: str) -> Example:
    """Turn a demonstration into ids with the chat template, exactly as the agent loop lays out a conversation."""
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
    return Example(
        torch.tensor(ids), torch.tensor(labels), torch.from_numpy(np.stack(demo.frames)), torch.tensor(cells)
    )


class GroundingHeads(nn.Module):
    """The auxiliary heads on image tokens; thrown away after the warm start."""

    def __init__(self, hidden_size: int, rows: int, columns: int) -> None:
        super().__init__()
        self.row = nn.Linear(hidden_size, rows)
        self.column = nn.Linear(hidden_size, columns)
        self.target = nn.Linear(hidden_size, 1)
        self.rows, self.columns = rows, columns

    def forward(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Losses for image tokens ``hidden`` (images, rows * columns, d) and ``targets`` (images,)."""
        cells = torch.arange(self.rows * self.columns)
        images = hidden.shape[0]
        row = F.cross_entropy(self.row(hidden).flatten(0, 1), (cells // self.columns).repeat(images))
        column = F.cross_entropy(self.column(hidden).flatten(0, 1), (cells % self.columns).repeat(images))
        if (targets != IGNORE).any():
            target = F.cross_entropy(self.target(hidden).squeeze(-1), targets, ignore_index=IGNORE)
        else:
            target = hidden.new_zeros(())
        return row + column, target


@dataclass
class CloningConfig:
    """How to train.

    Attributes:
        steps: optimiser steps.
        batch_size: screenshots a step, about (episodes of several turns count by their turns).
        lr: peak learning rate; linear warm-up, cosine decay to a tenth.
        warmup_steps: steps of the warm-up.
        aux_layer: language layer whose output the auxiliary heads read (1 = after the first).
        aux_weight: weight of both auxiliary losses.
        seed: of the order of the examples.
        log_every: steps between log lines.
    """

    steps: int = 2000
    batch_size: int = 48
    lr: float = 1e-3
    warmup_steps: int = 100
    aux_layer: int = 3
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
    on_log: Callable[[int, dict[str, float]], None] | None = None,
) -> None:
    """Train ``model`` in place.

    Args:
        model: the policy, float32.
        processor: its processor.
        examples: called before every epoch; may return more each time.
        config: how.
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
        heads = GroundingHeads(model.config.text_config.hidden_size, rows, columns)
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
        hidden = out.hidden_states[config.aux_layer][ids == image_id].view(len(frames), rows * columns, -1)
        where, target = heads(hidden, targets)
        loss = answer + config.aux_weight * (where + target)
        progress = step / config.steps
        scale = min(1.0, step / config.warmup_steps) * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = config.lr * scale
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        for name, value in (("answer", answer), ("where", where), ("target", target)):
            sums[name] = sums.get(name, 0.0) + float(value.detach())
        if step % config.log_every == 0 or step == config.steps:
            means = {name: value / config.log_every for name, value in sums.items()}
            means["seconds"] = time.monotonic() - started
            sums = {}
            logger.info("step %d/%d %s", step, config.steps, {k: round(v, 4) for k, v in means.items()})
            if on_log is not None:
                on_log(step, means)
    model.eval()
