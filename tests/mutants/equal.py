"""Mutants that do the same as what they were made from, each with the reason. Keys: path, line before, line after."""

from __future__ import annotations

EQUAL: dict[tuple[str, str, str], str] = {}
