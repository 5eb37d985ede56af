"""What users call. The owner of defaults."""
