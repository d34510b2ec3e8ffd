"""Random programs, computed on both sides of the bridge."""
