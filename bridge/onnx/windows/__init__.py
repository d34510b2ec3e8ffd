"""Rules for contractions, convolutions and windows."""
