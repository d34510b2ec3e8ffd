"""What the layers of Keras 3 and of tf-keras are made of, and how a layer becomes an artifact."""
