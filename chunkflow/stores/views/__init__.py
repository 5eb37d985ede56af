"""Views of other arrays: slices, compositions, regions shared with other processes."""
