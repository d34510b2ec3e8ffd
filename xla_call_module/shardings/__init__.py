"""The sharding of one array over several devices: one value, and a codec for each of its forms.

`array_sharding.Sharding` is the value: tiles and the order of the devices (`device_order`), as XLA
has them, and the `Placement` on the named axes of a mesh (`mesh_placement`) where that is known.
Everything that asks a question of a sharding (its number of parts, whether two are the same, by
which axes) asks the value.

| form | where it is found | codec |
|---|---|---|
| text | the attribute `mhlo.sharding` of a module | `sharding_text` |
| `xla.OpSharding` | attributes of nodes; an `Exported` before JAX 0.9 | `sharding_protos` |
| JSON | the description that a node carries of its call | `sharding_json` |
| Shardy | the attributes of the dialect `sdy` in a parsed module; they are only read | `shardy` |
| `NamedSharding` | an `Exported` since JAX 0.9 | `sharding_jax`, the only one that imports JAX |

A sharding comes in with an `Exported` or a module, is kept in the `TensorSpec`s of a `CallModule`,
goes into nodes of a file as JSON and as `xla.OpSharding`, and out of it to JAX.

To add a form, write a module with `sharding_from_…` and `sharding_to_…`, refuse what the value
cannot say with a `FormatError`, and add it to the round trips in
`tests/xla_call_module/shardings/test_shardings_codecs.py`.
"""
