"""Starting a training run, showing how it goes, and leaving nothing behind when it ends."""
