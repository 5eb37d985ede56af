"""Codecs of chunks: one file for each, and a registry of them."""
