/* Runs signatures of SavedModels through TensorFlow's C API, as TensorFlow Serving does.
 *
 *   load_and_run REQUESTS ANSWERS
 *
 * Both files are little-endian binary. A string is a uint32 length and its bytes; a tensor is an
 * int32 dtype (TF_DataType), an int32 rank, an int64 for each dimension, a uint64 number of bytes,
 * and the bytes. REQUESTS is a uint32 count and for each run: the folder; a uint32 count of feeds,
 * each the name of a graph tensor and a tensor; a uint32 count of names to fetch. ANSWERS has for
 * each run a string, empty or an error's message, and after an empty one the fetched tensors.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static void die(const char* what) {
  fprintf(stderr, "load_and_run: %s\n", what);
  exit(1);
}

static void* allocate(size_t count, size_t size) {
  void* memory = calloc(count ? count : 1, size ? size : 1);
  if (memory == NULL) die("out of memory");
  return memory;
}

static void read_bytes(FILE* file, void* data, size_t size) {
  if (size && fread(data, 1, size, file) != size) die("the requests end early");
}

static void write_bytes(FILE* file, const void* data, size_t size) {
  if (size && fwrite(data, 1, size, file) != size) die("an answer cannot be written");
}

static uint32_t read_count(FILE* file) {
  uint32_t count;
  read_bytes(file, &count, sizeof count);
  return count;
}

static char* read_string(FILE* file) {
  uint32_t length = read_count(file);
  char* text = allocate((size_t)length + 1, 1);
  read_bytes(file, text, length);
  return text;
}

static void write_string(FILE* file, const char* text) {
  uint32_t length = (uint32_t)strlen(text);
  write_bytes(file, &length, sizeof length);
  write_bytes(file, text, length);
}

static TF_Tensor* read_tensor(FILE* file) {
  int32_t dtype, rank;
  int64_t dims[256];
  uint64_t size;
  read_bytes(file, &dtype, sizeof dtype);
  read_bytes(file, &rank, sizeof rank);
  if (rank < 0 || rank > 256) die("a tensor of the requests has no sensible rank");
  read_bytes(file, dims, (size_t)rank * sizeof dims[0]);
  read_bytes(file, &size, sizeof size);
  TF_Tensor* tensor = TF_AllocateTensor((TF_DataType)dtype, dims, rank, size);
  if (tensor == NULL || TF_TensorByteSize(tensor) != size) die("a tensor cannot be allocated");
  read_bytes(file, TF_TensorData(tensor), size);
  return tensor;
}

static void write_tensor(FILE* file, const TF_Tensor* tensor) {
  int32_t dtype = (int32_t)TF_TensorType(tensor), rank = TF_NumDims(tensor);
  uint64_t size = TF_TensorByteSize(tensor);
  write_bytes(file, &dtype, sizeof dtype);
  write_bytes(file, &rank, sizeof rank);
  for (int32_t axis = 0; axis < rank; ++axis) {
    int64_t dim = TF_Dim(tensor, axis);
    write_bytes(file, &dim, sizeof dim);
  }
  write_bytes(file, &size, sizeof size);
  write_bytes(file, TF_TensorData(tensor), size);
}

/* The graph tensor with a name such as `x:0`. */
static TF_Output find(TF_Graph* graph, const char* name, TF_Status* status) {
  TF_Output output = {NULL, 0};
  const char* colon = strrchr(name, ':');
  size_t length = colon ? (size_t)(colon - name) : strlen(name);
  char* operation = allocate(length + 1, 1);
  memcpy(operation, name, length);
  output.oper = TF_GraphOperationByName(graph, operation);
  output.index = colon ? atoi(colon + 1) : 0;
  if (output.oper == NULL) TF_SetStatus(status, TF_NOT_FOUND, name);
  free(operation);
  return output;
}

static void run(FILE* requests, FILE* answers) {
  char* folder = read_string(requests);
  uint32_t feeds = read_count(requests);
  char** feed_names = allocate(feeds, sizeof *feed_names);
  TF_Tensor** values = allocate(feeds, sizeof *values);
  for (uint32_t i = 0; i < feeds; ++i) {
    feed_names[i] = read_string(requests);
    values[i] = read_tensor(requests);
  }
  uint32_t fetches = read_count(requests);
  char** fetch_names = allocate(fetches, sizeof *fetch_names);
  for (uint32_t i = 0; i < fetches; ++i) fetch_names[i] = read_string(requests);

  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  TF_Session* session =
      TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, graph, NULL, status);
  TF_Output* inputs = allocate(feeds, sizeof *inputs);
  TF_Output* outputs = allocate(fetches, sizeof *outputs);
  TF_Tensor** results = allocate(fetches, sizeof *results);
  for (uint32_t i = 0; i < feeds && TF_GetCode(status) == TF_OK; ++i)
    inputs[i] = find(graph, feed_names[i], status);
  for (uint32_t i = 0; i < fetches && TF_GetCode(status) == TF_OK; ++i)
    outputs[i] = find(graph, fetch_names[i], status);
  if (TF_GetCode(status) == TF_OK)
    TF_SessionRun(session, NULL, inputs, values, (int)feeds, outputs, results, (int)fetches, NULL,
                  0, NULL, status);

  int succeeded = TF_GetCode(status) == TF_OK;
  const char* message = TF_Message(status);
  write_string(answers, succeeded ? "" : *message ? message : "an error without a message");
  for (uint32_t i = 0; i < fetches; ++i) {
    if (succeeded) write_tensor(answers, results[i]);
    TF_DeleteTensor(results[i]);
    free(fetch_names[i]);
  }
  for (uint32_t i = 0; i < feeds; ++i) {
    TF_DeleteTensor(values[i]);
    free(feed_names[i]);
  }
  if (session != NULL) TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  free(results), free(outputs), free(inputs), free(fetch_names), free(values), free(feed_names);
  free(folder);
}

int main(int argc, char** argv) {
  if (argc != 3) die("usage: load_and_run REQUESTS ANSWERS");
  FILE* requests = fopen(argv[1], "rb");
  FILE* answers = fopen(argv[2], "wb");
  if (requests == NULL || answers == NULL) die("a file cannot be opened");
  for (uint32_t count = read_count(requests); count > 0; --count) run(requests, answers);
  if (fclose(requests) || fclose(answers)) die("a file cannot be closed");
  return 0;
}
