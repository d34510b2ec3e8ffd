"""The messages of TensorFlow Serving that are written here, and `tf.Example`, in a private pool.

Those of Serving are those of tensorflow_serving/apis/{model,predict,prediction_log,input,
classification,regression,get_model_metadata,get_model_status,status}.proto,
tensorflow_serving/config/{model_server_config,file_system_storage_path_source,monitoring_config}
.proto and tensorflow_serving/servables/tensorflow/session_bundle_config.proto; the tests compare
them with the ones that `tensorflow-serving-api` ships. Fields that are not declared here are kept
as unknown fields by the wire format, and are an error in the text format.
"""

from __future__ import annotations

from google.protobuf import text_format

from savedmodel.protos.schema import FILE_NAME, Proto, build_pool, message_class, parse_file
from xla_call_module.errors import FormatError

_DECLARATIONS = """
message ModelSpec
  name = 1 string; signature_name = 3 string
  oneof version_choice: version = 2 google.protobuf.Int64Value; version_label = 4 string
message PredictRequest
  model_spec = 1 serving.ModelSpec; inputs = 2 string -> TensorProto; output_filter = 3 string*
message PredictResponse
  outputs = 1 string -> TensorProto; model_spec = 2 serving.ModelSpec
message ExampleList
  examples = 1 Example*
message ExampleListWithContext
  examples = 1 Example*; context = 2 Example
message Input
  oneof kind: example_list = 1 serving.ExampleList
  oneof kind: example_list_with_context = 2 serving.ExampleListWithContext
message Class
  label = 1 string; score = 2 float
message Classifications
  classes = 1 serving.Class*
message ClassificationResult
  classifications = 1 serving.Classifications*
message ClassificationRequest
  model_spec = 1 serving.ModelSpec; input = 2 serving.Input
message ClassificationResponse
  result = 1 serving.ClassificationResult; model_spec = 2 serving.ModelSpec
message Regression
  value = 1 float
message RegressionResult
  regressions = 1 serving.Regression*
message RegressionRequest
  model_spec = 1 serving.ModelSpec; input = 2 serving.Input
message RegressionResponse
  result = 1 serving.RegressionResult; model_spec = 2 serving.ModelSpec

message SignatureDefMap
  signature_def = 1 string -> SignatureDef
message GetModelMetadataRequest
  model_spec = 1 serving.ModelSpec; metadata_field = 2 string*
message GetModelMetadataResponse
  model_spec = 1 serving.ModelSpec; metadata = 2 string -> google.protobuf.Any
message StatusProto
  error_code = 1 error.Code; error_message = 2 string
message GetModelStatusRequest
  model_spec = 1 serving.ModelSpec
message ModelVersionStatus
  version = 1 int64; state = 2 serving.ModelVersionStatus.State; status = 3 serving.StatusProto
enum ModelVersionStatus.State
  UNKNOWN = 0; START = 10; LOADING = 20; AVAILABLE = 30; UNLOADING = 40; END = 50
message GetModelStatusResponse
  model_version_status = 1 serving.ModelVersionStatus*

message PredictLog
  request = 1 serving.PredictRequest; response = 2 serving.PredictResponse
message PredictionLog
  oneof log_type: predict_log = 6 serving.PredictLog

message BatchingParameters
  max_batch_size = 1 google.protobuf.Int64Value
  batch_timeout_micros = 2 google.protobuf.Int64Value
  max_enqueued_batches = 3 google.protobuf.Int64Value
  num_batch_threads = 4 google.protobuf.Int64Value
  thread_pool_name = 5 google.protobuf.StringValue; allowed_batch_sizes = 6 int64*
  pad_variable_length_inputs = 7 bool

message FileSystemStoragePathSourceConfig
message FileSystemStoragePathSourceConfig.ServableVersionPolicy
  oneof policy_choice: latest = 100 serving.FileSystemStoragePathSourceConfig.ServableVersionPolicy.Latest
  oneof policy_choice: all = 101 serving.FileSystemStoragePathSourceConfig.ServableVersionPolicy.All
  oneof policy_choice: specific = 102 serving.FileSystemStoragePathSourceConfig.ServableVersionPolicy.Specific
message FileSystemStoragePathSourceConfig.ServableVersionPolicy.Latest
  num_versions = 1 uint32
message FileSystemStoragePathSourceConfig.ServableVersionPolicy.All
message FileSystemStoragePathSourceConfig.ServableVersionPolicy.Specific
  versions = 1 int64*

message ModelConfig
  name = 1 string; base_path = 2 string; model_platform = 4 string
  model_version_policy = 7 serving.FileSystemStoragePathSourceConfig.ServableVersionPolicy
  version_labels = 8 string -> int64
message ModelConfigList
  config = 1 serving.ModelConfig*
message ModelServerConfig
  oneof config: model_config_list = 1 serving.ModelConfigList
  oneof config: custom_model_config = 2 google.protobuf.Any

message PrometheusConfig
  enable = 1 bool; path = 2 string
message MonitoringConfig
  prometheus_config = 1 serving.PrometheusConfig
"""  # noqa: E501 - the names are as long as they are

# From tensorflow/core/example: example.proto and feature.proto.
_EXAMPLE_DECLARATIONS = """
message BytesList
  value = 1 bytes*
message FloatList
  value = 1 float*
message Int64List
  value = 1 int64*
message Feature
  oneof kind: bytes_list = 1 BytesList
  oneof kind: float_list = 2 FloatList
  oneof kind: int64_list = 3 Int64List
message Features
  feature = 1 string -> Feature
message Example
  features = 1 Features
"""
# From xla/tsl/protobuf/error_codes.proto, without the two that are not for use.
_CODE_DECLARATIONS = """
enum Code
  OK = 0; CANCELLED = 1; UNKNOWN = 2; INVALID_ARGUMENT = 3; DEADLINE_EXCEEDED = 4; NOT_FOUND = 5
  ALREADY_EXISTS = 6; PERMISSION_DENIED = 7; RESOURCE_EXHAUSTED = 8; FAILED_PRECONDITION = 9
  ABORTED = 10; OUT_OF_RANGE = 11; UNIMPLEMENTED = 12; INTERNAL = 13; UNAVAILABLE = 14
  DATA_LOSS = 15; UNAUTHENTICATED = 16
"""
_EXAMPLES, _CODES = "bridge/example.proto", "bridge/error_codes.proto"
_POOL = build_pool(
    parse_file(_EXAMPLE_DECLARATIONS, name=_EXAMPLES),
    parse_file(_CODE_DECLARATIONS, name=_CODES, package="tensorflow.error"),
    parse_file(
        _DECLARATIONS,
        name="bridge/serving.proto",
        package="tensorflow.serving",
        dependencies=(FILE_NAME, _EXAMPLES, _CODES),
    ),
)

ErrorCode = _POOL.FindEnumTypeByName("tensorflow.error.Code")
Example = message_class(_POOL, "Example")
BatchingParameters = message_class(_POOL, "serving.BatchingParameters")
ClassificationRequest = message_class(_POOL, "serving.ClassificationRequest")
ClassificationResponse = message_class(_POOL, "serving.ClassificationResponse")
GetModelMetadataRequest = message_class(_POOL, "serving.GetModelMetadataRequest")
GetModelMetadataResponse = message_class(_POOL, "serving.GetModelMetadataResponse")
GetModelStatusRequest = message_class(_POOL, "serving.GetModelStatusRequest")
GetModelStatusResponse = message_class(_POOL, "serving.GetModelStatusResponse")
ModelServerConfig = message_class(_POOL, "serving.ModelServerConfig")
MonitoringConfig = message_class(_POOL, "serving.MonitoringConfig")
PredictRequest = message_class(_POOL, "serving.PredictRequest")
PredictResponse = message_class(_POOL, "serving.PredictResponse")
PredictionLog = message_class(_POOL, "serving.PredictionLog")
RegressionRequest = message_class(_POOL, "serving.RegressionRequest")
RegressionResponse = message_class(_POOL, "serving.RegressionResponse")
SignatureDefMap = message_class(_POOL, "serving.SignatureDefMap")
TensorProto = message_class(_POOL, "TensorProto")


def encode_text(message: Proto) -> str:
    """Return a message in protobuf's text format, in which Serving reads its configuration."""
    return str(text_format.MessageToString(message))


def decode_text(text: str, kind: type[Proto], *, where: str) -> Proto:
    """Parse a message in protobuf's text format."""
    try:
        return text_format.Parse(text, kind())
    except text_format.ParseError as error:
        raise FormatError(
            f"{where} is not a {kind.DESCRIPTOR.name} in protobuf's text format: {error}. To do: "
            "correct it, or remove it to have it written anew."
        ) from error
