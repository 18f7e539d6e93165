#!/usr/bin/env bash
# GRPO on 32 OSWorld tasks, 8 GPUs of one machine.
# Arguments are passed on to verl, for example: run_osworld_subset32.sh trainer.total_training_steps=100
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"

export VERL_GUI_RUN_DIR=${VERL_GUI_RUN_DIR:-outputs/grpo-osworld-subset32-$(date +%Y%m%d-%H%M%S)}
export VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0

verl-gui doctor --recipe recipes/grpo_gui/osworld_subset32.yaml -- "$@"
exec verl-gui run --dir "$VERL_GUI_RUN_DIR" -- \
    python -m verl.trainer.main_ppo --config-path "$PWD/recipes/grpo_gui" --config-name osworld_subset32 "$@"
