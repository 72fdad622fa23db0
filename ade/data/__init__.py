"""Datasets: reading files, texts with labels, tokenizing, batches."""
