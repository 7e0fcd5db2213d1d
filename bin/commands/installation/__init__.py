"""Commands that set up, check and run an installation."""
