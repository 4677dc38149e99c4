"""Published tables as data, the recipe of each cell, and the results of our runs."""
