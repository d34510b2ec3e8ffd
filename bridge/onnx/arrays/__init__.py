"""Rules for operations that move elements: shapes, slices, gathers, scatters, sorts."""
