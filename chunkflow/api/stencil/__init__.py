"""Functions of neighbours, once or many times."""
