"""The descriptions of operations and deliveries, one module per subject."""
