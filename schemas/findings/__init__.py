"""Findings over scan runs: when one is fixed and when it is open again, and findings as lists show them."""
