"""Compliance requests: form, record, and how a subject is matched in text."""
