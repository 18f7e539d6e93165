"""A program of its own: what a vLLM engine says of a picture before and after an update of its weights.

    python vllm_after_an_update.py POLICY UPDATED_POLICY

Prints JSON: log-probabilities of the same answer with old weights, after the update without clearing any
cache, and after verl's ``clear_kv_cache``, each beside transformers' own.
"""

import asyncio
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
from vllm import LLM, SamplingParams
from vllm.model_executor.model_loader.utils import process_weights_after_loading

from verl_gui.models.screenshot import Screenshot

ANSWER = "Action: click(start_box='(28,56)')"
LIMITS = {"min_pixels": 3136, "max_pixels": 37632}


def screenshot() -> Screenshot:
    out = io.BytesIO()
    Image.effect_noise((168, 224), 90).convert("RGB").save(out, "PNG")
    return Screenshot(out.getvalue())


def main() -> None:
    policy, updated = map(Path, sys.argv[1:])
    processor = AutoProcessor.from_pretrained(policy)
    shot = screenshot()
    content = [{"type": "text", "text": "Click it."}, {"type": "image"}]
    messages = [{"role": "system", "content": "Act."}, {"role": "user", "content": content}]
    prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    answer = processor.tokenizer(ANSWER, add_special_tokens=False).input_ids
    inputs = processor(text=[prompt], images=[shot.picture()], return_tensors="pt", **LIMITS)

    @torch.no_grad()
    def truth(path: Path) -> list[float]:
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
            path, dtype=torch.float32, attn_implementation="sdpa"
        )
        ids = torch.cat([inputs["input_ids"], torch.tensor([answer])], dim=1)
        types = torch.nn.functional.pad(inputs["mm_token_type_ids"], (0, len(answer)))
        logits = model(
            input_ids=ids,
            pixel_values=inputs["pixel_values"],
            image_grid_thw=inputs["image_grid_thw"],
            mm_token_type_ids=types,
        ).logits[0]
        said = logits[-len(answer) - 1 : -1].log_softmax(-1)
        return said.gather(1, torch.tensor(answer)[:, None])[:, 0].tolist()

    llm = LLM(
        str(policy),
        dtype="float32",
        max_model_len=256,
        enforce_eager=True,
        max_logprobs=-1,
        limit_mm_per_prompt={"image": 1, "video": 0},
        mm_processor_kwargs=LIMITS,
        seed=0,
    )
    question = processor.tokenizer(prompt, add_special_tokens=False).input_ids

    def engine() -> list[float]:
        """Log-probabilities of the answer as verl's server gets them: of tokens that are sampled."""
        said = []
        for turn, token in enumerate(answer):
            request = {
                "prompt_token_ids": question + answer[:turn],
                "multi_modal_data": {"image": [shot.picture()]},
            }
            only = SamplingParams(max_tokens=1, temperature=1.0, logprobs=-1, seed=0)
            (output,) = llm.generate(request, only, use_tqdm=False)
            said.append(output.outputs[0].logprobs[0][token].logprob)
        return said

    found = {"old": (engine(), truth(policy))}
    weights = list(load_file(updated / "model.safetensors").items())

    def update(model: torch.nn.Module) -> None:
        """As verl's worker does."""
        model.load_weights(iter(weights))
        process_weights_after_loading(model, llm.llm_engine.model_config, torch.device("cpu"))

    llm.apply_model(update)
    found["uncleared"] = (engine(), truth(updated))

    async def reset(what: str, **options: bool) -> None:
        getattr(llm.llm_engine, f"reset_{what}")(**options)

    server = SimpleNamespace(
        node_rank=0,
        engine=SimpleNamespace(
            reset_prefix_cache=lambda **options: reset("prefix_cache", **options),
            reset_mm_cache=lambda: reset("mm_cache"),
            reset_encoder_cache=lambda: reset("encoder_cache"),
        ),
    )
    asyncio.run(vLLMHttpServer.clear_kv_cache(server))
    found["cleared"] = (engine(), truth(updated))
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
