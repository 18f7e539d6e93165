"""k rollouts of a policy on each task, resumable: the base of ``verl-gui eval`` and of the task filter."""
