"""Values, validation, state machines and policies: pure code without clock, randomness and I/O."""
