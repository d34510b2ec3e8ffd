"""The messages of a SavedModel and of a checkpoint, in a descriptor pool of their own.

TensorFlow registers its messages in protobuf's default pool, where a second registration of the
same name makes one of the two imports fail. In a private pool both live side by side, whichever
comes first, and pass bytes to each other.

Names, numbers, types, labels and oneofs are those of the .proto files in tensorflow/core/framework
and tensorflow/core/protobuf; `tests/savedmodel/protos/test_schema.py` compares them with the ones
that TensorFlow ships. Fields that are not declared here (debug information, full types, variants,
the text of op definitions) are kept by protobuf as unknown fields: a message that is read and
written again loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, cast

from google.protobuf import any_pb2, wrappers_pb2
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from typing import Any

    class _ProtoType(type):
        def __getattr__(cls, name: str) -> Any: ...

    class Proto(Message, metaclass=_ProtoType):
        """A message of one of the classes below; its fields and nested classes are `Any`."""

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...
        def __setattr__(self, name: str, value: Any) -> None: ...

else:
    Proto = Message


# One paragraph for each message or enum, the outer before the nested. `name = number type`; a
# star repeats the field, `K -> V` is a map, and a line that begins with `oneof name:` holds
# members of that oneof. A type is the full name without `tensorflow.`.
_DECLARATIONS = """
enum DataType
  DT_INVALID = 0; DT_FLOAT = 1; DT_DOUBLE = 2; DT_INT32 = 3; DT_UINT8 = 4; DT_INT16 = 5
  DT_INT8 = 6; DT_STRING = 7; DT_COMPLEX64 = 8; DT_INT64 = 9; DT_BOOL = 10; DT_QINT8 = 11
  DT_QUINT8 = 12; DT_QINT32 = 13; DT_BFLOAT16 = 14; DT_QINT16 = 15; DT_QUINT16 = 16
  DT_UINT16 = 17; DT_COMPLEX128 = 18; DT_HALF = 19; DT_RESOURCE = 20; DT_VARIANT = 21
  DT_UINT32 = 22; DT_UINT64 = 23; DT_FLOAT8_E5M2 = 24; DT_FLOAT8_E4M3FN = 25
  DT_FLOAT8_E4M3FNUZ = 26; DT_FLOAT8_E4M3B11FNUZ = 27; DT_FLOAT8_E5M2FNUZ = 28; DT_INT4 = 29
  DT_UINT4 = 30; DT_INT2 = 31; DT_UINT2 = 32

message TensorShapeProto
  dim = 2 TensorShapeProto.Dim*; unknown_rank = 3 bool
message TensorShapeProto.Dim
  size = 1 int64; name = 2 string

message ResourceHandleProto
  device = 1 string; container = 2 string; name = 3 string; hash_code = 4 uint64
  maybe_type_name = 5 string; dtypes_and_shapes = 6 ResourceHandleProto.DtypeAndShape*
message ResourceHandleProto.DtypeAndShape
  dtype = 1 DataType; shape = 2 TensorShapeProto

message TensorProto
  dtype = 1 DataType; tensor_shape = 2 TensorShapeProto; version_number = 3 int32
  tensor_content = 4 bytes; half_val = 13 int32*; float_val = 5 float*; double_val = 6 double*
  int_val = 7 int32*; string_val = 8 bytes*; scomplex_val = 9 float*; int64_val = 10 int64*
  bool_val = 11 bool*; dcomplex_val = 12 double*; uint32_val = 16 uint32*
  resource_handle_val = 14 ResourceHandleProto*; uint64_val = 17 uint64*; float8_val = 18 bytes

message VersionDef
  producer = 1 int32; min_consumer = 2 int32; bad_consumers = 3 int32*

message AttrValue
  oneof value: list = 1 AttrValue.ListValue; s = 2 bytes; i = 3 int64; f = 4 float; b = 5 bool
  oneof value: type = 6 DataType; shape = 7 TensorShapeProto; tensor = 8 TensorProto
  oneof value: placeholder = 9 string; func = 10 NameAttrList
message AttrValue.ListValue
  s = 2 bytes*; i = 3 int64*; f = 4 float*; b = 5 bool*; type = 6 DataType*
  shape = 7 TensorShapeProto*; tensor = 8 TensorProto*; func = 9 NameAttrList*
message NameAttrList
  name = 1 string; attr = 2 string -> AttrValue

message FullTypeDef

message NodeDef
  name = 1 string; op = 2 string; input = 3 string*; device = 4 string
  attr = 5 string -> AttrValue; experimental_type = 7 FullTypeDef

message OpDef
  name = 1 string; input_arg = 2 OpDef.ArgDef*; output_arg = 3 OpDef.ArgDef*
  attr = 4 OpDef.AttrDef*; is_aggregate = 16 bool; is_stateful = 17 bool
  is_commutative = 18 bool; allows_uninitialized_input = 19 bool; control_output = 20 string*
message OpDef.ArgDef
  name = 1 string; type = 3 DataType; type_attr = 4 string; number_attr = 5 string
  type_list_attr = 6 string; handle_data = 7 ResourceHandleProto.DtypeAndShape*
  is_ref = 16 bool; experimental_full_type = 17 FullTypeDef
message OpDef.AttrDef
  name = 1 string; type = 2 string; default_value = 3 AttrValue; has_minimum = 5 bool
  minimum = 6 int64; allowed_values = 7 AttrValue
message OpList
  op = 1 OpDef*

message FunctionDef
  signature = 1 OpDef; node_def = 3 NodeDef*; ret = 4 string -> string
  attr = 5 string -> AttrValue; control_ret = 6 string -> string
  arg_attr = 7 uint32 -> FunctionDef.ArgAttrs; resource_arg_unique_id = 8 uint32 -> uint32
message FunctionDef.ArgAttrs
  attr = 1 string -> AttrValue
message GradientDef
  function_name = 1 string; gradient_func = 2 string
message RegisteredGradient
  gradient_func = 1 string; registered_op_type = 2 string
message FunctionDefLibrary
  function = 1 FunctionDef*; gradient = 2 GradientDef*
  registered_gradients = 3 RegisteredGradient*

message GraphDef
  node = 1 NodeDef*; library = 2 FunctionDefLibrary; version = 3 int32; versions = 4 VersionDef

message StructuredValue
  oneof kind: none_value = 1 NoneValue; float64_value = 11 double; int64_value = 12 sint64
  oneof kind: string_value = 13 string; bool_value = 14 bool
  oneof kind: tensor_shape_value = 31 TensorShapeProto; tensor_dtype_value = 32 DataType
  oneof kind: tensor_spec_value = 33 TensorSpecProto; type_spec_value = 34 TypeSpecProto
  oneof kind: bounded_tensor_spec_value = 35 BoundedTensorSpecProto; list_value = 51 ListValue
  oneof kind: tuple_value = 52 TupleValue; dict_value = 53 DictValue
  oneof kind: named_tuple_value = 54 NamedTupleValue; tensor_value = 55 TensorProto
  oneof kind: numpy_value = 56 TensorProto
message NoneValue
message ListValue
  values = 1 StructuredValue*
message TupleValue
  values = 1 StructuredValue*
message DictValue
  fields = 1 string -> StructuredValue
message PairValue
  key = 1 string; value = 2 StructuredValue
message NamedTupleValue
  name = 1 string; values = 2 PairValue*
message TensorSpecProto
  name = 1 string; shape = 2 TensorShapeProto; dtype = 3 DataType
message BoundedTensorSpecProto
  name = 1 string; shape = 2 TensorShapeProto; dtype = 3 DataType; minimum = 4 TensorProto
  maximum = 5 TensorProto
message TypeSpecProto
  type_spec_class = 1 TypeSpecProto.TypeSpecClass; type_state = 2 StructuredValue
  type_spec_class_name = 3 string; num_flat_components = 4 int32
enum TypeSpecProto.TypeSpecClass
  UNKNOWN = 0; SPARSE_TENSOR_SPEC = 1; INDEXED_SLICES_SPEC = 2; RAGGED_TENSOR_SPEC = 3
  TENSOR_ARRAY_SPEC = 4; DATA_DATASET_SPEC = 5; DATA_ITERATOR_SPEC = 6; OPTIONAL_SPEC = 7
  PER_REPLICA_SPEC = 8; VARIABLE_SPEC = 9; ROW_PARTITION_SPEC = 10; REGISTERED_TYPE_SPEC = 12
  EXTENSION_TYPE_SPEC = 13

message RegisteredSaver
  name = 1 string; object_name = 2 string
message TrackableObjectGraph
  nodes = 1 TrackableObjectGraph.TrackableObject*
message TrackableObjectGraph.TrackableObject
  children = 1 TrackableObjectGraph.TrackableObject.ObjectReference*
  attributes = 2 TrackableObjectGraph.TrackableObject.SerializedTensor*
  slot_variables = 3 TrackableObjectGraph.TrackableObject.SlotVariableReference*
  registered_saver = 4 RegisteredSaver; has_checkpoint_values = 5 google.protobuf.BoolValue
message TrackableObjectGraph.TrackableObject.ObjectReference
  node_id = 1 int32; local_name = 2 string
message TrackableObjectGraph.TrackableObject.SerializedTensor
  name = 1 string; full_name = 2 string; checkpoint_key = 3 string
message TrackableObjectGraph.TrackableObject.SlotVariableReference
  original_variable_node_id = 1 int32; slot_name = 2 string; slot_variable_node_id = 3 int32

enum VariableSynchronization
  VARIABLE_SYNCHRONIZATION_AUTO = 0; VARIABLE_SYNCHRONIZATION_NONE = 1
  VARIABLE_SYNCHRONIZATION_ON_WRITE = 2; VARIABLE_SYNCHRONIZATION_ON_READ = 3
enum VariableAggregation
  VARIABLE_AGGREGATION_NONE = 0; VARIABLE_AGGREGATION_SUM = 1; VARIABLE_AGGREGATION_MEAN = 2
  VARIABLE_AGGREGATION_ONLY_FIRST_REPLICA = 3

message SavedUserObject
  identifier = 1 string; version = 2 VersionDef; metadata = 3 string
message SavedAsset
  asset_file_def_index = 1 int32
message FunctionSpec
  fullargspec = 1 StructuredValue; is_method = 2 bool; input_signature = 5 StructuredValue
  jit_compile = 6 FunctionSpec.JitCompile
enum FunctionSpec.JitCompile
  DEFAULT = 0; ON = 1; OFF = 2
message SavedFunction
  concrete_functions = 1 string*; function_spec = 2 FunctionSpec
message SavedConcreteFunction
  bound_inputs = 2 int32*; canonicalized_input_signature = 3 StructuredValue
  output_signature = 4 StructuredValue
message SavedBareConcreteFunction
  concrete_function_name = 1 string; argument_keywords = 2 string*
  allowed_positional_arguments = 3 int64; function_spec = 4 FunctionSpec
message CapturedTensor
  name = 1 string; concrete_function = 2 string
message SavedConstant
  operation = 1 string
message SavedVariable
  dtype = 1 DataType; shape = 2 TensorShapeProto; trainable = 3 bool
  synchronization = 4 VariableSynchronization; aggregation = 5 VariableAggregation
  name = 6 string; device = 7 string
  experimental_distributed_variable_components = 8 SavedVariable*
message SavedResource
  device = 1 string
message SaveableObject
  save_function = 2 int32; restore_function = 3 int32
message SavedObject
  children = 1 TrackableObjectGraph.TrackableObject.ObjectReference*
  slot_variables = 3 TrackableObjectGraph.TrackableObject.SlotVariableReference*
  oneof kind: user_object = 4 SavedUserObject; asset = 5 SavedAsset; function = 6 SavedFunction
  oneof kind: variable = 7 SavedVariable; bare_concrete_function = 8 SavedBareConcreteFunction
  oneof kind: constant = 9 SavedConstant; resource = 10 SavedResource
  oneof kind: captured_tensor = 12 CapturedTensor
  saveable_objects = 11 string -> SaveableObject; registered_name = 13 string
  serialized_user_proto = 14 google.protobuf.Any
  dependencies = 15 TrackableObjectGraph.TrackableObject.ObjectReference*
  registered_saver = 16 string
message SavedObjectGraph
  nodes = 1 SavedObject*; concrete_functions = 2 string -> SavedConcreteFunction

message SaverDef
  filename_tensor_name = 1 string; save_tensor_name = 2 string; restore_op_name = 3 string
  max_to_keep = 4 int32; sharded = 5 bool; keep_checkpoint_every_n_hours = 6 float
  version = 7 SaverDef.CheckpointFormatVersion
enum SaverDef.CheckpointFormatVersion
  LEGACY = 0; V1 = 1; V2 = 2

message TensorInfo
  oneof encoding: name = 1 string; coo_sparse = 4 TensorInfo.CooSparse
  oneof encoding: composite_tensor = 5 TensorInfo.CompositeTensor
  dtype = 2 DataType; tensor_shape = 3 TensorShapeProto
message TensorInfo.CooSparse
  values_tensor_name = 1 string; indices_tensor_name = 2 string
  dense_shape_tensor_name = 3 string
message TensorInfo.CompositeTensor
  type_spec = 1 TypeSpecProto; components = 2 TensorInfo*
message SignatureDef
  inputs = 1 string -> TensorInfo; outputs = 2 string -> TensorInfo; method_name = 3 string
  defaults = 4 string -> TensorProto
message AssetFileDef
  tensor_info = 1 TensorInfo; filename = 2 string
message CollectionDef
  oneof kind: node_list = 1 CollectionDef.NodeList; bytes_list = 2 CollectionDef.BytesList
  oneof kind: int64_list = 3 CollectionDef.Int64List; float_list = 4 CollectionDef.FloatList
  oneof kind: any_list = 5 CollectionDef.AnyList
message CollectionDef.NodeList
  value = 1 string*
message CollectionDef.BytesList
  value = 1 bytes*
message CollectionDef.Int64List
  value = 1 int64*
message CollectionDef.FloatList
  value = 1 float*
message CollectionDef.AnyList
  value = 1 google.protobuf.Any*

message MetaGraphDef
  meta_info_def = 1 MetaGraphDef.MetaInfoDef; graph_def = 2 GraphDef; saver_def = 3 SaverDef
  collection_def = 4 string -> CollectionDef; signature_def = 5 string -> SignatureDef
  asset_file_def = 6 AssetFileDef*; object_graph_def = 7 SavedObjectGraph
message MetaGraphDef.MetaInfoDef
  meta_graph_version = 1 string; stripped_op_list = 2 OpList
  any_info = 3 google.protobuf.Any; tags = 4 string*; tensorflow_version = 5 string
  tensorflow_git_version = 6 string; stripped_default_attrs = 7 bool
  function_aliases = 8 string -> string
message SavedModel
  saved_model_schema_version = 1 int64; meta_graphs = 2 MetaGraphDef*

message TensorSliceProto
  extent = 1 TensorSliceProto.Extent*
message TensorSliceProto.Extent
  start = 1 int64
  oneof has_length_hack: length = 2 int64
message FingerprintDef
  checkpoint_hash = 5 uint64; uuid = 7 string

message BundleHeaderProto
  num_shards = 1 int32; endianness = 2 BundleHeaderProto.Endianness; version = 3 VersionDef
enum BundleHeaderProto.Endianness
  LITTLE = 0; BIG = 1
message BundleEntryProto
  dtype = 1 DataType; shape = 2 TensorShapeProto; shard_id = 3 int32; offset = 4 int64
  size = 5 int64; crc32c = 6 fixed32; slices = 7 TensorSliceProto*
"""

FILE_NAME = "savedmodel/tensorflow.proto"
_PACKAGE = "tensorflow"
_SCALARS = {
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "fixed32": FieldDescriptorProto.TYPE_FIXED32,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "sint64": FieldDescriptorProto.TYPE_SINT64,
    "string": FieldDescriptorProto.TYPE_STRING,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
}


def parse_file(
    declarations: str, *, name: str, package: str = _PACKAGE, dependencies: Sequence[str] = ()
) -> FileDescriptorProto:
    """Return the file that declarations, written as those above, stand for."""
    file = FileDescriptorProto(
        name=name,
        package=package,
        syntax="proto3",
        dependency=[any_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name, *dependencies],
    )
    messages: dict[str, DescriptorProto] = {}
    prefix = f"{package}.".removeprefix(f"{_PACKAGE}.")
    for declaration in re.split(r"\n+(?=message |enum )", declarations.strip()):
        header, *lines = declaration.splitlines()
        kind, full_name = header.split()
        outer, _, name = full_name.rpartition(".")
        if kind == "enum":
            enum = (messages[outer] if outer else file).enum_type.add(name=name)
            for value, number, _, _ in _parse_entries(lines):
                enum.value.add(name=value, number=number)
        else:
            siblings = messages[outer].nested_type if outer else file.message_type
            messages[full_name] = message = siblings.add(name=name)
            for entry in _parse_entries(lines):
                _add_field(message, f"{prefix}{full_name}", *entry)
    return file


def _parse_entries(lines: Iterable[str]) -> Iterator[tuple[str, int, str, str]]:
    """Yield the name, number, type and oneof of each entry; the last two may be empty."""
    for line in lines:
        oneof, _, entries = line.strip().rpartition(": ")
        for entry in entries.split("; "):
            name, _, rest = entry.partition(" = ")
            number, _, type_name = rest.partition(" ")
            yield name, int(number), type_name, oneof.removeprefix("oneof ")


def _add_field(
    message: DescriptorProto, full_name: str, name: str, number: int, type_name: str, oneof: str
) -> None:
    field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if oneof:
        field.oneof_index = _oneof_index(message, oneof)
    if type_name.endswith("*"):
        field.label = FieldDescriptorProto.LABEL_REPEATED
    key_type, arrow, value_type = type_name.partition(" -> ")
    if not arrow:
        _set_type(field, type_name.removesuffix("*"))
        return
    # On the wire a map is a repeated message: https://protobuf.dev/programming-guides/encoding/#maps
    entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
    entry.options.map_entry = True
    _add_field(entry, entry.name, "key", 1, key_type, "")
    _add_field(entry, entry.name, "value", 2, value_type, "")
    field.label = FieldDescriptorProto.LABEL_REPEATED
    _set_type(field, f"{full_name}.{entry.name}")


def _oneof_index(message: DescriptorProto, oneof: str) -> int:
    names = [declared.name for declared in message.oneof_decl]
    if oneof not in names:
        message.oneof_decl.add(name=oneof)
        return len(names)
    return names.index(oneof)


def _set_type(field: FieldDescriptorProto, type_name: str) -> None:
    if (scalar := _SCALARS.get(type_name)) is not None:
        field.type = scalar
        return
    # The pool finds out whether it is a message or an enum (descriptor.proto, `type`).
    field.type_name = f".{type_name}" if "google" in type_name else f".{_PACKAGE}.{type_name}"


def build_pool(*files: FileDescriptorProto) -> DescriptorPool:
    """Return a private pool with the messages of this module, and those of more files."""
    pool = DescriptorPool()
    pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(parse_file(_DECLARATIONS, name=FILE_NAME).SerializeToString())
    for file in files:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def message_class(pool: DescriptorPool, name: str) -> type[Proto]:
    """Return the class of a message; the name is without `tensorflow.`."""
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
    return cast("type[Proto]", GetMessageClass(descriptor))


_POOL = build_pool()


def _message(name: str) -> type[Proto]:
    return message_class(_POOL, name)


BundleEntryProto = _message("BundleEntryProto")
BundleHeaderProto = _message("BundleHeaderProto")
FingerprintDef = _message("FingerprintDef")
FunctionDef = _message("FunctionDef")
FunctionDefLibrary = _message("FunctionDefLibrary")
FunctionSpec = _message("FunctionSpec")
GraphDef = _message("GraphDef")
MetaGraphDef = _message("MetaGraphDef")
NodeDef = _message("NodeDef")
SavedModel = _message("SavedModel")
SavedObjectGraph = _message("SavedObjectGraph")
SaverDef = _message("SaverDef")
SignatureDef = _message("SignatureDef")
StructuredValue = _message("StructuredValue")
TensorProto = _message("TensorProto")
TensorShapeProto = _message("TensorShapeProto")
TrackableObjectGraph = _message("TrackableObjectGraph")
