"""How arrays lie on several devices: one value, and a codec for each form it is written in."""
