"""Scanner reports as postbacks, and their sender.

One pure module per format, from bytes to values; only `sender` opens connections.
"""
