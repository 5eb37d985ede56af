"""Transfers through pinned buffers, where the device has a memory of its own."""
