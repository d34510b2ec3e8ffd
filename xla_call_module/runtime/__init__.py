"""The XlaCallModule op in a live TensorFlow."""
