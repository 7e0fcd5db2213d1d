"""Measurements with many rows: lists, pages, findings, plans, partitions and sizes."""
