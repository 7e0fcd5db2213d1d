"""Approval rules, and their decisions when an export is prepared."""
