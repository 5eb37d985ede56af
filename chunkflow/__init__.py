"""Stream arrays larger than GPU memory through a GPU, within a byte budget.

>>> import numpy as np, chunkflow as cf
>>> cf.map(np.sqrt, np.array([1.0, 4.0, 9.0]), device="cpu")
array([1., 2., 3.])
"""

from chunkflow import errors
from chunkflow.api import chunks, explain, map
from chunkflow.budget import Budget
from chunkflow.errors import BudgetError, ChunkflowError, ReadError, WriteError
from chunkflow.plan import Plan
from chunkflow.profile import Profile
from chunkflow.stream import Chunk, ChunkStream
from chunkflow.trace import Observer, observing

__version__ = "0.1.0"

__all__ = [
    "Budget",
    "BudgetError",
    "Chunk",
    "ChunkStream",
    "ChunkflowError",
    "Observer",
    "Plan",
    "Profile",
    "ReadError",
    "WriteError",
    "chunks",
    "errors",
    "explain",
    "map",
    "observing",
]
