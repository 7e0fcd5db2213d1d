"""Compares what was acknowledged with what arrived and what is stored, and reports it."""
