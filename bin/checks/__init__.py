"""Checks that `doctor` runs."""
