"""Measurements with many rows: lists, console pages, findings, query plans, partitions and row sizes."""
