"""Sentence encoders: a large one distilled into one of a few megabytes, and searching with it."""
