"""The messages of the format, in a private descriptor pool, and bounds for parsing them."""
