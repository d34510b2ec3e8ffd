/* What the programs here have in common: tensors in files, and graph tensors by name.
 *
 * Files are little-endian binary. A string is a uint32 length and its bytes; a tensor is an int32
 * dtype (TF_DataType), an int32 rank, an int64 for each dimension, a uint64 number of bytes, and the
 * bytes.
 */
#ifndef TENSORS_H
#define TENSORS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

static inline void die(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static inline void* allocate(size_t count, size_t size) {
  void* memory = calloc(count ? count : 1, size ? size : 1);
  if (memory == NULL) die("out of memory");
  return memory;
}

static inline void read_bytes(FILE* file, void* data, size_t size) {
  if (size && fread(data, 1, size, file) != size) die("the requests end early");
}

static inline void write_bytes(FILE* file, const void* data, size_t size) {
  if (size && fwrite(data, 1, size, file) != size) die("an answer cannot be written");
}

static inline uint32_t read_count(FILE* file) {
  uint32_t count;
  read_bytes(file, &count, sizeof count);
  return count;
}

static inline char* read_string(FILE* file) {
  uint32_t length = read_count(file);
  char* text = allocate((size_t)length + 1, 1);
  read_bytes(file, text, length);
  return text;
}

static inline void write_string(FILE* file, const char* text) {
  uint32_t length = (uint32_t)strlen(text);
  write_bytes(file, &length, sizeof length);
  write_bytes(file, text, length);
}

static inline TF_Tensor* read_tensor(FILE* file) {
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

static inline void write_tensor(FILE* file, const TF_Tensor* tensor) {
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
static inline TF_Output find(TF_Graph* graph, const char* name, TF_Status* status) {
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

#endif
