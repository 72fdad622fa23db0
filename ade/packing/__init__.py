"""Codebooks in few bits: the stored format, a codebook for a size in bytes, a smaller vocabulary."""
