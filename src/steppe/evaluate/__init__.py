"""How good a model is: globally, for each class, and for each client."""
