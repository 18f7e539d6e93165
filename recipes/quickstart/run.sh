#!/usr/bin/env bash
# Trains the quickstart: stock verl's launcher with this folder's configuration.
# Arguments are passed on to verl, for example: run.sh trainer.total_training_steps=60
set -euo pipefail
cd "$(dirname "$0")/../.."
PATH="$PWD/.venv/bin:$PATH"

run_dir=${VERL_GUI_RUN_DIR:-outputs/quickstart-$(date +%Y%m%d-%H%M%S)}
steps=16
for argument in "$@"; do
    case $argument in trainer.total_training_steps=*) steps=${argument#*=} ;; esac
done

# vLLM on CPU: GiB for its key-value cache, and no pinning of threads to cores
export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
export VLLM_CPU_OMP_THREADS_BIND=${VLLM_CPU_OMP_THREADS_BIND:-nobind}
# torch threads of every verl process (Ray would give each one) and of vLLM's own
export VERL_GUI_NUM_THREADS=${VERL_GUI_NUM_THREADS:-2}
export VERL_GUI_VLLM_THREADS=${VERL_GUI_VLLM_THREADS:-1}
# vLLM would compile two small functions of its sampler with a C++ compiler, which takes longer than they ever do
export TORCHDYNAMO_DISABLE=${TORCHDYNAMO_DISABLE:-1}
export VERL_GUI_RUN_DIR=$run_dir
# vLLM, wandb and transformers phone home otherwise; nothing here needs a network
export VLLM_NO_USAGE_STATS=1 WANDB_MODE=offline HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0

exec verl-gui run --dir "$run_dir" --total-steps "$steps" -- \
    python -m verl.trainer.main_ppo --config-path "$PWD/recipes/quickstart" --config-name quickstart "$@"
