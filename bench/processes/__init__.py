"""Measurements of processes: starts and stops, memory, and processor time."""
