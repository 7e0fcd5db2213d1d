"""Commands, one module per verb."""
