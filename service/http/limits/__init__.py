"""Limits for requests: their number, their size, and the failed authentications of an address."""
