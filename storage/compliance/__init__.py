"""Compliance requests, erasure, the erasure log and its replay after a restore."""
