"""Several element-wise functions as one kernel."""
