"""The command line `bin/riskrelay`."""
