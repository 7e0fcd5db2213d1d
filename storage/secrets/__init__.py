"""Encryption at rest, encrypted columns and shared secrets."""
