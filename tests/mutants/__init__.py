"""Mutants: random small changes of chunkflow that some test must notice. ``make mutants`` draws and tries them."""
