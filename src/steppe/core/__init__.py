"""The heart: algorithms as stacks of parts around a gradient oracle. Imports torch and nothing of ours."""
