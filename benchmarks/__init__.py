"""Benchmarks of Steppe against hand-written loops and other frameworks, on one machine in one run."""
