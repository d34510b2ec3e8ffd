"""Mutations of SavedModels, and what reading them may end in."""
