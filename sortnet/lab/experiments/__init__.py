"""The paper's numbers as experiments."""
