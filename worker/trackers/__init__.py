"""Requests to issue trackers: the steps of their modules, over the guarded connections and under one deadline."""
