"""Other libraries that do the same work."""
