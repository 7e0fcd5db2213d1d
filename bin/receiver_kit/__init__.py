"""A development receiver, test cases for receivers, test vectors, and a diagnosis of invalid signatures."""
