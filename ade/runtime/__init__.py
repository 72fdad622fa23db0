"""Prediction by exact tables: on CPUs with numpy alone, on GPUs with Triton kernels."""
