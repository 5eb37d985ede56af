"""Copies, transposes, joins and new chunks."""
