"""Arrays in plain files: memmaps and ``.npy``."""
