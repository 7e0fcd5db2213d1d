"""Detectors of forbidden content in text: one module per kind."""
