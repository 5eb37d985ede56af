"""What users call, and the defaults. It knows nothing of how a block is moved or computed: it asks the wings below."""
