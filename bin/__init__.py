"""The caretaker's keys: one module per verb, joined into one command by bin.__main__."""
