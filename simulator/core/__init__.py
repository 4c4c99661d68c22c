"""What every world of the simulator is made of: fibers on a virtual clock, and what comes of a seed."""
