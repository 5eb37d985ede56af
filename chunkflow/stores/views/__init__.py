"""Arrays that are seen through others: slices, compositions, memory shared with another process."""
