"""What is corrected before and after the converter, in a process of its own."""
