"""Embedding tables of other models in a few bits a weight: the coder, the layers that read it, tuning, the report."""
