"""How arrays lie on several devices: one value, and a codec for each form it is written in.

`array_sharding.Sharding` is the value: tiles and the order of the devices, as XLA has them, and the
`Placement` on the named axes of a mesh where that is known. Everything that asks a question of a
sharding (which part has a device, are two the same, by which axes) asks the value.

| form | where it is found | codec |
|---|---|---|
| text | the attribute `mhlo.sharding` of a module | `sharding_text` |
| `xla.OpSharding` | attributes of nodes; an `Exported` before JAX 0.9 | `sharding_protos` |
| JSON | the description that a node carries of its call | `sharding_json` |
| Shardy | the attributes of the dialect `sdy` in a module, by names only | `shardy` |
| `jax.sharding` | an `Exported`, and arrays | `sharding_jax`, the only one that imports JAX |

To add a form, write a module with `sharding_from_…` and `sharding_to_…`, refuse what the value
cannot say with a `FormatError`, and add it to the round trips in
`tests/xla_call_module/shardings/test_shardings_codecs.py`.
"""
