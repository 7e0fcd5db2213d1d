"""Words: the shapes that cross a boundary, and the rules about them that need no clock, I/O or randomness."""
