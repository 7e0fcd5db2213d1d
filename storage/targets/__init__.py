"""Targets and their throttle state, pings and validations."""
