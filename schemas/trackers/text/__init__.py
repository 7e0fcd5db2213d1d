"""Renders tickets in the markup of each tracker, with untrusted text made harmless."""
