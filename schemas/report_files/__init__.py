"""Scanners' report files as postbacks: one module per format, from bytes to values."""
