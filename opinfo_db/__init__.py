"""A database of operations that generates the tests of their transforms and compositions."""
