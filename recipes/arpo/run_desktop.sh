#!/usr/bin/env bash
# ARPO on local desktops, 1 GPU.
# Arguments are passed on to verl, for example: run_desktop.sh trainer.total_training_steps=100
exec "$(dirname "$0")/../launch.sh" arpo desktop "$@"
