"""Stage 3: the training loop, its schedule and checkpoints, soft targets, moving pairs, fitting a lexicon."""
