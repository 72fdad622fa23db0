"""Training: `train`, the loop that trains all layers with its schedule and checkpoints, and soft targets."""
