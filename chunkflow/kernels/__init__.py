"""Kernels: what is computed on one block. They know arrays, and no store, lane or budget."""
