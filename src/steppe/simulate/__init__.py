"""Running rounds: the loop, its executors, the store of client states, checkpoints, and a microscope."""
