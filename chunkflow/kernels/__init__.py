"""What is computed on one block. It knows arrays, and no store, lane or budget."""
