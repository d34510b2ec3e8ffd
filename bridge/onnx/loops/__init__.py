"""Rules for branches, loops and scans."""
