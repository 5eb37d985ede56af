"""Random arrays that are never stored: ``chunkflow.random.default_rng(seed).normal(size=(1000, 1000, 1000))``.

Each number is computed from the seed and its place alone. So blocks, budget, device and the number of workers change
no number, and any part of an array can be computed by itself, again and again.
"""

from chunkflow.api.lazy.random import RandomGenerator, default_rng

__all__ = ["RandomGenerator", "default_rng"]
