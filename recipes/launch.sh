#!/usr/bin/env bash
# launch.sh FOLDER CONFIG [KEY=VALUE …]: what every recipe for GPUs does. The doctor looks at the machine first, then
# stock verl's launcher runs recipes/FOLDER/CONFIG.yaml. VERL_GUI_RUN_DIR names the run's directory.
set -euo pipefail
folder=$1 config=$2
shift 2
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"

export VERL_GUI_RUN_DIR=${VERL_GUI_RUN_DIR:-outputs/$folder-$config-$(date +%Y%m%d-%H%M%S)}
export VLLM_NO_USAGE_STATS=1 RAY_USAGE_STATS_ENABLED=0

verl-gui doctor --recipe "recipes/$folder/$config.yaml" -- "$@"
exec verl-gui run --dir "$VERL_GUI_RUN_DIR" -- \
    python -m verl.trainer.main_ppo --config-path "$PWD/recipes/$folder" --config-name "$config" "$@"
