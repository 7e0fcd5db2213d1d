"""Retention, archive, backup, restore, key rotation, store health."""
