"""Tickets as the text of each tracker, with strangers' text made harmless."""
