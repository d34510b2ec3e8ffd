"""StableHLO modules: parse them once, walk them, splice, inline and refine them."""
