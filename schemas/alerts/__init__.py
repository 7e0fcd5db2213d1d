"""Alerts: their text, and the messages about them in the format of each channel."""
