#!/usr/bin/env bash
# ARPO on 32 OSWorld tasks, 8 GPUs of one machine.
# Arguments are passed on to verl, for example: run_osworld_subset32.sh trainer.total_training_steps=100
exec "$(dirname "$0")/../launch.sh" arpo osworld_subset32 "$@"
