"""Clients of the installation, one thread each: they submit, approve, poll, triage, operate and scan; one is hostile."""
