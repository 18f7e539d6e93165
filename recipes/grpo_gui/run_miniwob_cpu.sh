#!/usr/bin/env bash
# GRPO on a laptop without a GPU, the baseline of recipes/arpo/run_miniwob_cpu.sh: the quickstart without replay.
# Arguments are passed on to verl, for example: run_miniwob_cpu.sh trainer.total_training_steps=60
set -euo pipefail
cd "$(dirname "$0")/../.."

export VERL_GUI_RUN_DIR=${VERL_GUI_RUN_DIR:-outputs/grpo-miniwob-$(date +%Y%m%d-%H%M%S)}

overrides=(
    # verl's own estimator
    algorithm.adv_estimator=grpo
    trainer.v1.sampler.custom_sampler.path=pkg://verl_gui.rollout.sampler
    trainer.v1.sampler.custom_sampler.name=GuiSampler
    trainer.experiment_name=grpo_miniwob_cpu
)
exec recipes/quickstart/run.sh "${overrides[@]}" "$@"
