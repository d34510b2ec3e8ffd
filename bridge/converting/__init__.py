"""The parts of `bridge.convert`: TensorFlow arguments, eager calls, differentiable functions."""
