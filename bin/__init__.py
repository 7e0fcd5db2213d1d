"""The command line `bin/riskrelay`, and the generators of the reference pages."""
