"""Evaluation of a model: globally, per class, and per client."""
