"""Finds exports: the hosts, rules and words of each, and lists by filters."""
