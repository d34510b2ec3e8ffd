"""The shape assertions of a call, apart from what it computes, and how they are checked."""
