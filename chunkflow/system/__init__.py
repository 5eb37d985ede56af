"""The operating system: host memory, interrupts, threads that are kept, and the compiled loops.

It knows nothing of arrays' regions.
"""
