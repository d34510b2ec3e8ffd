"""Descriptions of `Exported`s: all fields of one but its module, as a value, as JSON, and back.

A node carries the JSON text (`description_json.py`); JAX's own serialization, which files of older
releases carry and users bring, is read by `serialized_exported.py` through the tables of
`flatbuffer.py`. All of them end in one value, `ExportedDescription`. Nothing here imports JAX: what
makes a description of an `Exported`, and an `Exported` of a description, is in
`xla_call_module/exported.py` and `exported_fields.py`.

To add a field: a minor version adds it to the value, to the JSON at its root, and to
`docs/internals/exported-description.schema.json`. A major version changes what a known field means.
"""
