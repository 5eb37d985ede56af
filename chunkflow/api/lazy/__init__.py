"""Lazy arrays: opening, computing, and NumPy's functions of them."""
