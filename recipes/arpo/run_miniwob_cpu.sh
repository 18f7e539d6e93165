#!/usr/bin/env bash
# ARPO on a laptop without a GPU: the quickstart (tiny model, MiniWoB++ in a real Chromium) with replay.
# Arguments are passed on to verl, for example: run_miniwob_cpu.sh trainer.total_training_steps=60
set -euo pipefail
cd "$(dirname "$0")/../.."

export VERL_GUI_RUN_DIR=${VERL_GUI_RUN_DIR:-outputs/arpo-miniwob-$(date +%Y%m%d-%H%M%S)}

overrides=(
    # (reward - mean of the group) / std of the group; exactly 0 where all rewards are equal
    algorithm.adv_estimator=arpo
    # Truncated importance weights: what is replayed was sampled by an older policy
    algorithm.rollout_correction.rollout_is=token
    algorithm.rollout_correction.rollout_is_threshold=2.0
    # Keep successes and put one into each group in which all rollouts failed
    ++gui.replay.enable=true
    ++gui.replay.capacity_per_task=8
    ++gui.replay.min_score=0.1
    ++gui.replay.old_log_probs=stored
    # Stores and injects when verl asks for a batch
    trainer.v1.sampler.custom_sampler.path=pkg://verl_gui.replay.sampler
    trainer.v1.sampler.custom_sampler.name=SuccessReplaySampler
    trainer.experiment_name=arpo_miniwob_cpu
)
exec recipes/quickstart/run.sh "${overrides[@]}" "$@"
