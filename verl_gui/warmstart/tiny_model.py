"""A Qwen2.5-VL small enough to train on two CPU cores, with its own tokenizer.

It is the real architecture (``Qwen2_5_VLForConditionalGeneration``), the real processor, Qwen's special
tokens and chat template, so everything that works with it works with a 7B checkpoint by changing a path. The
sizes follow a trial: grounding from random weights is learnable in minutes when the vision tower uses full
attention and the rotary base is small, because positions are then told apart over a few dozen tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen2-VL's special tokens, in Qwen's order."""

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if loop.first and message.role != 'system' -%}"
    "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}"
    "{%- for part in message.content -%}"
    "{%- if part.type == 'image' or 'image_url' in part -%}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- elif part.type == 'video' -%}{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}"
    "{%- elif 'text' in part -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""Renders as Qwen2-VL's own template does (a system block is added when the conversation has none)."""


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with Qwen's special tokens.

    Numbers are kept whole, so that a coordinate that occurs in ``texts`` becomes a single token: the policy
    then chooses a position in one draw, not digit by digit. So is the head of a call,
    ``Action: click(...='(``: an answer takes nine tokens, and a small model's time goes into their number.

    Args:
        texts: what the merges are learnt from.
        vocab_size: number of ids, special tokens included; the result may be smaller, never larger.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(
                    r"Thought:|\nAction: \p{L}+\((?:[\p{L}_]+='\(?)?"
                    r"|\p{N}+| ?\p{L}+|\n+|[^\p{L}\p{N}\n]+?(?= ?\p{L})|[^\p{L}\p{N}\n]+"
                ),
                "isolated",
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS),
        chat_template=CHAT_TEMPLATE,
    )


def tiny_config(tokenizer: PreTrainedTokenizerFast, *, hidden_size: int, layers: int) -> Qwen2_5_VLConfig:
    """Configuration of the tiny Qwen2.5-VL: ``layers`` language layers and as many vision layers."""
    token_id = tokenizer.convert_tokens_to_ids
    heads = hidden_size // 32
    config = Qwen2_5_VLConfig(
        text_config={
            "model_type": "qwen2_5_vl_text",
            "vocab_size": -(-len(tokenizer) // 64) * 64,
            "hidden_size": hidden_size,
            "intermediate_size": 2 * hidden_size,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [2, 7, 7]},
            "bos_token_id": None,
            "eos_token_id": token_id("<|im_end|>"),
            "pad_token_id": token_id("<|endoftext|>"),
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": layers,
            "hidden_size": hidden_size,
            "intermediate_size": 2 * hidden_size,
            "num_heads": heads,
            "out_hidden_size": hidden_size,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": list(range(layers)),
            "in_channels": 3,
        },
        image_token_id=token_id("<|image_pad|>"),
        video_token_id=token_id("<|video_pad|>"),
        vision_start_token_id=token_id("<|vision_start|>"),
        vision_end_token_id=token_id("<|vision_end|>"),
        tie_word_embeddings=True,
    )
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    return config


def tiny_processor(
    tokenizer: PreTrainedTokenizerFast, *, min_pixels: int = 3136, max_pixels: int = 2116800
) -> Qwen2_5_VLProcessor:
    """Qwen2.5-VL's processor around ``tokenizer``."""
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(min_pixels=min_pixels, max_pixels=max_pixels),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=CHAT_TEMPLATE,
    )


def build_tiny_policy(
    texts: Iterable[str],
    *,
    seed: int = 0,
    vocab_size: int = 1024,
    hidden_size: int = 128,
    layers: int = 4,
) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor]:
    """A randomly initialised policy and its processor; the same arguments give the same weights.

    Args:
        texts: what the tokenizer's merges are learnt from: instructions and answers of the tasks.
        seed: of the weights.
        vocab_size: at most this many token ids.
        hidden_size: width of both towers; a multiple of 64 (heads are 32 wide, key-value heads half as many).
        layers: depth of both towers.
    """
    if hidden_size % 64:
        raise ValueError(f"hidden_size={hidden_size}: expected a multiple of 64")
    tokenizer = train_tokenizer(texts, vocab_size=vocab_size)
    config = tiny_config(tokenizer, hidden_size=hidden_size, layers=layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2_5_VLForConditionalGeneration._from_config(
            config, attn_implementation="sdpa", dtype=torch.float32
        )
    return model, tiny_processor(tokenizer)


def save_policy(model: Any, processor: Qwen2_5_VLProcessor, directory: str | Path) -> None:
    """Write a Hugging Face checkpoint that transformers, verl and vLLM load by path."""
    model.save_pretrained(directory)
    processor.save_pretrained(directory)
