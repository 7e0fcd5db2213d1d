"""Alerts: what happened in words, and the messages about it in the form of each channel."""
