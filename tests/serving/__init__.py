"""Models in front of TensorFlow Serving, or of what it is made of."""
