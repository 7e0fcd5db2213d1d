"""Limits of requests: how many, how large, and from which addresses."""
