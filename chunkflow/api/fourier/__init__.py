"""Transforms and convolutions."""
