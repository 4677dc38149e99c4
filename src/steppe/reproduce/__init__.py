"""Published tables as data, the recipe behind each cell, and what we found when we ran it."""
