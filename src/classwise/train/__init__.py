"""Training: configuration, one loop, checkpoints, and what a run leaves behind."""
