"""Rules for branches and loops: If, Loop and Scan, of counting loops and of others."""
