/* Trains a SavedModel further with samples of its own, by TensorFlow's C API alone.
 *
 *   train_digits MODEL SAMPLES TRAINED
 *
 * digits_model.py wrote MODEL and SAMPLES, and the folder TRAINED, which gets the trained variables.
 * With the headers and libraries of the TensorFlow package it is built by
 *
 *   TF=$(python -c 'import tensorflow as tf; print(tf.sysconfig.get_lib())')
 *   cc -std=c11 -O2 -I$TF/include train_digits.c -o train_digits \
 *      -L$TF -l:libtensorflow_cc.so.2 -l:libtensorflow_framework.so.2 -Wl,-rpath,$TF
 *
 * or with those of libtensorflow (https://www.tensorflow.org/install/lang_c) and -ltensorflow.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/c_api.h"

enum { PIXELS = 64, BATCH = 50, EPOCHS = 20 };

static TF_Status* status;
static TF_Graph* graph;
static TF_Session* session;

static void check(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void check_status(void) { check(TF_GetCode(status) == TF_OK, TF_Message(status)); }

static TF_Tensor* make_tensor(TF_DataType dtype, const void* data, int64_t rows, int64_t columns) {
  const int64_t dims[] = {rows, columns};
  size_t size = (size_t)(rows * (columns ? columns : 1)) * TF_DataTypeSize(dtype);
  TF_Tensor* tensor = TF_AllocateTensor(dtype, dims, columns ? 2 : 1, size);
  memcpy(TF_TensorData(tensor), data, size);
  return tensor;
}

static TF_Output output(const char* operation, int index) {
  TF_Output found = {TF_GraphOperationByName(graph, operation), index};
  check(found.oper != NULL, operation);
  return found;
}

/* Calls a signature with samples; the names of its tensors are those that
 *   saved_model_cli show --dir MODEL --all
 * prints. */
static void call(const char* key, const float* images, const int32_t* labels, int64_t count,
                 const TF_Output* outputs, TF_Tensor** results, int result_count) {
  char names[2][64];
  snprintf(names[0], sizeof names[0], "%s_images", key);
  snprintf(names[1], sizeof names[1], "%s_labels", key);
  TF_Output inputs[] = {output(names[0], 0), output(names[1], 0)};
  TF_Tensor* values[] = {make_tensor(TF_FLOAT, images, count, PIXELS),
                         make_tensor(TF_INT32, labels, count, 0)};
  TF_SessionRun(session, NULL, inputs, values, 2, outputs, results, result_count, NULL, 0, NULL,
                status);
  check_status();
  TF_DeleteTensor(values[0]);
  TF_DeleteTensor(values[1]);
}

static float train(const float* images, const int32_t* labels, int64_t count) {
  TF_Output loss = output("StatefulPartitionedCall", 0);
  TF_Tensor* result;
  call("train", images, labels, count, &loss, &result, 1);
  float value = *(float*)TF_TensorData(result);
  TF_DeleteTensor(result);
  return value;
}

static void evaluate(const char* when, const float* images, const int32_t* labels, int64_t count) {
  const char* operation = "StatefulPartitionedCall_1";
  TF_Output outputs[] = {output(operation, 0), output(operation, 1)};
  TF_Tensor* results[2];
  call("evaluate", images, labels, count, outputs, results, 2);
  printf("%s: %d of %d right after %d steps\n", when, *(int32_t*)TF_TensorData(results[0]),
         (int)count, *(int32_t*)TF_TensorData(results[1]));
  TF_DeleteTensor(results[0]);
  TF_DeleteTensor(results[1]);
}

/* Runs the operation that writes the variables to a checkpoint, which the file has for this. */
static void save(const char* folder) {
  char prefix[4096];
  int length = snprintf(prefix, sizeof prefix, "%s/variables/variables", folder);
  check(length > 0 && (size_t)length < sizeof prefix, "the path is too long");
  TF_Tensor* name = TF_AllocateTensor(TF_STRING, NULL, 0, sizeof(TF_TString));
  TF_TString* text = (TF_TString*)TF_TensorData(name);
  TF_StringInit(text);
  TF_StringCopy(text, prefix, (size_t)length);
  TF_Output input = output("saver_filename", 0), saved = output("save/prefix", 0);
  TF_Tensor* result;
  TF_SessionRun(session, NULL, &input, &name, 1, &saved, &result, 1, NULL, 0, NULL, status);
  check_status();
  TF_DeleteTensor(result);
  TF_StringDealloc(text);
  TF_DeleteTensor(name);
}

static void* read_all(FILE* file, size_t count, size_t size) {
  void* data = malloc(count * size);
  check(data != NULL && fread(data, size, count, file) == count, "the samples end early");
  return data;
}

int main(int argc, char** argv) {
  check(argc == 4, "usage: train_digits MODEL SAMPLES TRAINED");
  FILE* file = fopen(argv[2], "rb");
  check(file != NULL, "the samples cannot be opened");
  uint32_t* counts = read_all(file, 2, sizeof *counts);
  size_t training = counts[0], testing = counts[1], all = training + testing;
  float* images = read_all(file, all * PIXELS, sizeof *images);
  int32_t* labels = read_all(file, all, sizeof *labels);
  fclose(file);

  status = TF_NewStatus();
  graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  session = TF_LoadSessionFromSavedModel(options, NULL, argv[1], tags, 1, graph, NULL, status);
  check_status();

  const float* test_images = images + training * PIXELS;
  const int32_t* test_labels = labels + training;
  evaluate("as it came", test_images, test_labels, (int64_t)testing);
  for (int epoch = 1; epoch <= EPOCHS; ++epoch) {
    float sum = 0;
    size_t steps = training / BATCH;
    for (size_t i = 0; i < steps; ++i)
      sum += train(images + i * BATCH * PIXELS, labels + i * BATCH, BATCH);
    if (epoch % 5 == 0) printf("epoch %d: loss %.4f\n", epoch, sum / (float)steps);
  }
  evaluate("trained on the device", test_images, test_labels, (int64_t)testing);
  save(argv[3]);

  TF_CloseSession(session, status);
  TF_DeleteSession(session, status);
  TF_DeleteSessionOptions(options);
  TF_DeleteGraph(graph);
  TF_DeleteStatus(status);
  free(labels), free(images), free(counts);
  return 0;
}
