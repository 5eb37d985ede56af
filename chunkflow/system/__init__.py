"""The operating system: host memory, interrupts, the thread pool, and the compiled loops.

It knows nothing of regions of arrays.
"""
