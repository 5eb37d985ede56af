"""Expressions: many operations in the fewest passes. It knows no cluster."""
