"""NVIDIA's GPUs as devices. Nothing else imports CuPy."""
