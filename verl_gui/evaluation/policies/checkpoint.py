"""A local checkpoint, served by vLLM in a process of its own for as long as the evaluation lasts.

vLLM's OpenAI-compatible server is the engine, so a checkpoint and an endpoint are asked in the same way. What
training forbids or fixes is set here too: picture tokens cannot be sampled, special tokens stay in the
answer (UI-TARS writes coordinates with them), pictures are resized within the same bounds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from PIL import Image

from verl_gui.config import RolloutConfig
from verl_gui.evaluation.policies.base import PolicySetupError
from verl_gui.launch.processes import die_with_parent

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 1200.0  # a 72B model from a network disk takes its time
STOP_GRACE_S = 15.0
PICTURE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")


class VllmServer:
    """``vllm serve`` on a free local port.

    Args:
        checkpoint: directory of a Hugging Face checkpoint.
        rollout: pictures in a request and their size, as in training.
        concurrency: requests at once.
        arguments: more arguments of ``vllm serve``, for example ``["--tensor-parallel-size", "4"]``.
        log: file that takes the server's output.
    """

    def __init__(
        self,
        checkpoint: Path,
        rollout: RolloutConfig,
        *,
        concurrency: int,
        arguments: Sequence[str] = (),
        log: Path,
    ) -> None:
        self.checkpoint, self._log = checkpoint, log
        self._port = _free_port()
        self._command = serve_command(checkpoint, rollout, self._port, concurrency, arguments)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self._port}/v1"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start it and wait until it answers.

        Raises:
            PolicySetupError: it ended, or did not answer in time; the end of its log is in the message.
        """
        environment = dict(os.environ)
        if not _has_gpu():
            environment.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
            environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        environment.setdefault("VLLM_NO_USAGE_STATS", "1")
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                preexec_fn=partial(die_with_parent, signal.SIGTERM),
            )
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self._process.poll() is not None:
                raise PolicySetupError(
                    f"vLLM ended with status {self._process.returncode}; {self._log} says:\n{self._tail()}"
                )
            if time.monotonic() > deadline:
                self.stop()
                raise PolicySetupError(
                    f"vLLM did not answer within {timeout_s:.0f} s; {self._log} says:\n{self._tail()}"
                )
            time.sleep(0.5)

    def stop(self) -> None:
        """End the server and everything it started."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            logger.warning("vLLM did not end within %.0f s after SIGTERM; killing it", STOP_GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the engine's own processes, where they are left
        process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def serve_command(
    checkpoint: Path, rollout: RolloutConfig, port: int, concurrency: int, arguments: Sequence[str]
) -> list[str]:
    """The command line of the server."""
    pixels = {"min_pixels": rollout.min_pixels, "max_pixels": rollout.max_pixels}
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(checkpoint), "--served-model-name", "policy"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-num-seqs", str(max(1, concurrency))),
        *("--mm-processor-kwargs", json.dumps(pixels)),
        *("--limit-mm-per-prompt", json.dumps({"image": rollout.history_images, "video": 0})),
        *("--generation-config", "vllm"),  # or the checkpoint's own file would change how it samples
    ]
    if not _has_gpu():
        command += ["--enforce-eager", "--dtype", "float32"]
    return [*command, *arguments]


def processor_of(checkpoint: Path) -> Any:
    """The checkpoint's Hugging Face processor.

    Raises:
        PolicySetupError: there is none.
    """
    from transformers import AutoProcessor

    try:
        return AutoProcessor.from_pretrained(checkpoint, local_files_only=True)
    except (OSError, ValueError) as error:
        raise PolicySetupError(f"{checkpoint} is no checkpoint with a processor: {error}") from error


def frame_of(processor: Any, rollout: RolloutConfig) -> Callable[..., tuple[bytes, tuple[int, int]]]:
    """The picture is sent as it is; the size the model sees is read from the processor's own grid."""
    images = processor.image_processor

    @lru_cache(maxsize=64)
    def frame(screen: tuple[int, int]) -> tuple[int, int]:
        blank = Image.new("RGB", screen)
        features = images(images=[blank], min_pixels=rollout.min_pixels, max_pixels=rollout.max_pixels)
        _, rows, columns = (int(n) for n in features["image_grid_thw"][0])
        return columns * images.patch_size, rows * images.patch_size

    def look(png: bytes, screen: tuple[int, int]) -> tuple[bytes, tuple[int, int]]:
        return png, frame(screen)

    return look


def unsampled(processor: Any) -> dict[str, float]:
    """``logit_bias`` that keeps the model from writing tokens that stand for pictures."""
    tokenizer = processor.tokenizer
    ids = (tokenizer.convert_tokens_to_ids(token) for token in PICTURE_TOKENS)
    return {str(i): -100.0 for i in ids if i is not None and i != tokenizer.unk_token_id}


@lru_cache(maxsize=1)
def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
