"""API resources, one module per noun."""
