"""The value of a SavedModel as protos: function definitions, graphs, objects."""
