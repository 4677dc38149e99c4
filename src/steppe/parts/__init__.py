"""The ideas, one a file: citation, equation, deviations, code."""
