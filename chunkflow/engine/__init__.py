"""Runs one plan on one device, within a budget. It knows no expression."""
