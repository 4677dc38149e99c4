"""The ideas, one per file: citation, equation, deviations, code."""
