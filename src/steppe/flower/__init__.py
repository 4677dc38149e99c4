"""A real federation on Flower: the algorithms of the catalogue, unchanged, on data that stays with its owners."""
