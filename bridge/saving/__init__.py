"""From exported functions and parameters to the value of a file: the parts of `bridge.save`.

1. `bridge.exporting.export_model` makes an `Exported` of each signature, and `bridge.chains` the
   calls of all its orders, through the passes.
2. `parameters` makes variables of the pytree of parameters: names, dtypes, whether they are
   trained, and a stream of their bytes; `array_parts` tells where the parts of an array are that
   is spread over devices.
3. `signature_defaults` and `bridge.batching.buckets` add what a signature has besides.
4. `savedmodel.write` writes the value. Where the parameters are spread over the processes of
   `jax.distributed`, `processes` lets each of them write what it holds.

`new_values` finds the variables of a file that is there for which the leaves of a pytree are, for
`bridge.update`; `savedmodel.rewrite` puts them into it.

To store something new in a file, give the value of `savedmodel.model` a field, write and read it in
`savedmodel`, and fill it here.
"""
