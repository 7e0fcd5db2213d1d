"""Inbound data: scanner results, email, evidence, diagnostics, finding fingerprints."""
