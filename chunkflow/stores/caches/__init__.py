"""Caches between two reads: the system's pages, decoded chunks, buffers."""
