"""Triton reads this setting when transformers first imports it: without a GPU, kernels are interpreted."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
