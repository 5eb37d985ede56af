"""Products, covariances and correlations."""
