#!/usr/bin/env bash
# ARPO on OSWorld, 2 x 8 GPUs. Start Ray on all nodes first: recipes/arpo/README.md has the lines.
# Arguments are passed on to verl, for example: run_osworld_full.sh trainer.total_training_steps=100
exec "$(dirname "$0")/../launch.sh" arpo osworld_full "$@"
