"""Receivers and trackers as separate processes, and the files in which they record arrivals."""
