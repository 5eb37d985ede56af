"""Products of blocks, and sums of products."""
