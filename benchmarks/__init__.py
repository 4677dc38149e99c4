"""What Steppe costs, beside loops written by hand and other programs, on one machine in one run."""
