"""Compares acknowledged requests with arrivals and with the final database, and reports differences."""
