"""Approval rules, and what they decide when an export is prepared."""
