"""Functions of an element's neighbours, applied to a block with its halo."""
