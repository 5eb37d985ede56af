"""Which blocks, in which order, and at what cost.

It is pure: it touches no data and knows no store, kernel or device.
"""
