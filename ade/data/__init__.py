"""Texts and labels: reading files, data sets, tokenizing, batches."""
