"""The core: algorithms as stacks of parts around a gradient oracle. It imports only torch."""
