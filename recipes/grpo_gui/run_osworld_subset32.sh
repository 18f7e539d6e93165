#!/usr/bin/env bash
# GRPO on 32 OSWorld tasks, 8 GPUs of one machine.
# Arguments are passed on to verl, for example: run_osworld_subset32.sh trainer.total_training_steps=100
exec "$(dirname "$0")/../launch.sh" grpo_gui osworld_subset32 "$@"
