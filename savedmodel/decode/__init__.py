"""The protos of a SavedModel as its value: the graph is followed, nothing is run."""
