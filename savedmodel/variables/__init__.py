"""TensorBundle, the checkpoint format of variables: index, shards, slices, checksums."""
