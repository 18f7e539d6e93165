#!/usr/bin/env bash
# ARPO on OSWorld, 2 x 8 GPUs. Start Ray on all nodes first: recipes/arpo/README.md has the lines.
# Arguments are passed on to verl, for example: run_osworld_full.sh trainer.total_training_steps=100
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"

export VERL_GUI_RUN_DIR=${VERL_GUI_RUN_DIR:-outputs/arpo-osworld-full-$(date +%Y%m%d-%H%M%S)}
export VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0

verl-gui doctor --recipe recipes/arpo/osworld_full.yaml -- "$@"
exec verl-gui run --dir "$VERL_GUI_RUN_DIR" -- \
    python -m verl.trainer.main_ppo --config-path "$PWD/recipes/arpo" --config-name osworld_full "$@"
