"""The success buffer of this process's training run: fed by the sampler, saved with the data set's state."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from verl_gui.config import ReplayConfig
from verl_gui.replay.buffer import Stored, SuccessBuffer
from verl_gui.replay.packing import PackedRecord

logger = logging.getLogger(__name__)


class TrainingReplay:
    """Settings and buffer; off until :meth:`configure` turns it on."""

    def __init__(self) -> None:
        self.config = ReplayConfig()
        self.buffer = SuccessBuffer()
        self.report_dir: str | None = None
        self._given: dict[str, tuple[Stored, ...]] = {}
        self.injected: frozenset[str] = frozenset()
        """Keys of the rows of the running batch that are replayed ones."""
        self.without_log_probs: frozenset[str] = frozenset()
        """Those of them that were recorded by somebody whose log-probs are unknown."""

    def configure(self, config: ReplayConfig, report_dir: str | None = None) -> None:
        """Start a run with the successes of ``config.path``, or none.

        Args:
            config: the run's settings.
            report_dir: where injections are written down; ``None``: nowhere.

        Raises:
            FileNotFoundError: there is no such file.
            BufferFileError: it cannot be used.
        """
        self.config, self.report_dir = config, report_dir
        self.injected = self.without_log_probs = frozenset()
        self.buffer = SuccessBuffer(
            config.capacity_per_task,
            min_score=config.min_score,
            freshness_tau=config.freshness_tau,
            max_bytes=config.max_bytes,
        )
        if config.enable and config.path is not None:
            self.buffer.load(config.path)
        self._given = self.buffer.tasks

    def state_dict(self) -> dict[str, Any] | None:
        """Plain data and tensors (``torch.load(weights_only=True)`` reads them); ``None`` when off."""
        if not self.config.enable:
            return None
        return {
            task: [
                {
                    "step": s.step,
                    "score": s.score,
                    "fingerprint": s.fingerprint,
                    "tree": s.packed.tree,
                    "blobs": [torch.frombuffer(bytearray(b), dtype=torch.uint8) for b in s.packed.blobs],
                }
                for s in stored
            ]
            for task, stored in self.buffer.tasks.items()
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Go on with the successes of a checkpoint, and those of ``config.path`` that it lacks.

        A checkpoint of a run without replay adds none.
        """
        if not self.config.enable:
            return
        if state is None:
            start = "empty" if self.config.path is None else f"with {self.config.path}"
            logger.warning("the checkpoint has no replay buffer: replay starts %s", start)
        self.buffer.load_state_dict({"tasks": successes_of(state or {})})
        for task, stored in self._given.items():
            for success in stored:
                self.buffer.put(task, success)


def successes_of(state: Mapping[str, Any]) -> dict[str, tuple[Stored, ...]]:
    """The successes of every task in what :meth:`TrainingReplay.state_dict` gave."""
    return {
        task: tuple(
            Stored(
                PackedRecord(s["tree"], tuple(blob.numpy().tobytes() for blob in s["blobs"])),
                s["step"],
                s["score"],
                s["fingerprint"],
            )
            for s in stored
        )
        for task, stored in state.items()
    }


_TRAINING = TrainingReplay()


def training_replay() -> TrainingReplay:
    """The replay of this process's training run."""
    return _TRAINING
