"""Tickets: their texts, their bytes, and the events that follow them."""
