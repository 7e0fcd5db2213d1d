"""Clients of the installation, each a thread: they submit, approve, poll, triage, operate, scan, and one is hostile."""
