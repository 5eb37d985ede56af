"""Mutants that do the same as what they were made from, each with the reason. Keys: path, line before, line after."""

from __future__ import annotations

EQUAL: dict[tuple[str, str, str], str] = {
    (
        "chunkflow/graph/evaluate.py",
        "if len(group) == 1 or lives_below(group, self.stored):  # which has one pass only",
        "if len(group) <= 1 or lives_below(group, self.stored):  # which has one pass only",
    ): "no group is empty",
    (
        "chunkflow/kernels/linalg/gram.py",
        "tf32: bool = False",
        "tf32: bool = True",
    ): "each product is told; the default hides the property of its base class",
    (
        "chunkflow/kernels/linalg/product.py",
        "tf32: bool = False",
        "tf32: bool = True",
    ): "each product is told; the default hides the property of its base class",
    (
        "chunkflow/planner/matmul_search.py",
        "tried = replace(problem, budget=3 * chosen.memory.total // 4)",
        "tried = replace(problem, budget=3 * chosen.memory.total / 4)",
    ): "whole bytes are compared with it",
    (
        "chunkflow/planner/matmul_schedule.py",
        "several = {a for a, n in enumerate(counts) if n > 1}",
        "several = {a for a, n in enumerate(counts) if n != 1}",
    ): "a product of no elements has no such plan, so there is at least one block along each axis",
}
