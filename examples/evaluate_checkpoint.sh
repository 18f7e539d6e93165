#!/usr/bin/env bash
# Evaluates a checkpoint on held-out MiniWoB++ seeds: pass@1 with its interval, pass@2, by task.
#   examples/evaluate_checkpoint.sh CHECKPOINT OUT [more arguments of verl-gui eval]
# Without a GPU vLLM runs on the CPU; `expert` and `random` in place of a checkpoint need no model at all.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
checkpoint=${1:-recipes/quickstart/policy}
out=${2:-outputs/evaluation}
shift $(($# < 2 ? $# : 2))

exec verl-gui eval miniwob:click-test@test:4 miniwob:click-dialog@test:4 \
    --policy "$checkpoint" --config recipes/quickstart/quickstart.yaml \
    --runs 2 --temperature 0.7 --out "$out" --record "$@"
