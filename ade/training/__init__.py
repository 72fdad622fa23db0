"""Stage 3: the training loop, its schedule and checkpoints, learning from a fine-tuned encoder, moving pairs."""
