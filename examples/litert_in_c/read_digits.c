/* Reads digits with a LiteRT model that JAX has trained, by the C API of LiteRT alone.
 *
 *   read_digits MODEL SAMPLES
 *
 * digits_model.py wrote MODEL and SAMPLES. With the library of the package ai-edge-litert
 * it is built by
 *
 *   LITERT=$(python -c 'import ai_edge_litert; print(ai_edge_litert.__path__[0])')
 *   cc -std=c11 -O2 read_digits.c -o read_digits -L$LITERT -lLiteRt -Wl,-rpath,$LITERT
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The package has no headers. This is what the program needs of those in litert/c of
 * https://github.com/google-ai-edge/LiteRT: a handle is a pointer, a status is 0 or an error. */
typedef void *Environment, *Options, *Model, *Signature, *Tensor, *CompiledModel, *TensorBuffer;

enum { MAX_RANK = 8, FLOAT32 = 1, INT32 = 2, ON_CPU = 1, IN_HOST_MEMORY = 1 };
enum { TO_READ = 0, TO_WRITE = 1 };

typedef struct {
  unsigned int rank : 7, has_strides : 1;
  int32_t dimensions[MAX_RANK];
  uint32_t strides[MAX_RANK];
} Layout;

typedef struct {
  int element_type;
  Layout layout;
} TensorType;

int LiteRtCreateEnvironment(int option_count, const void* options, Environment*);
int LiteRtCreateOptions(Options*);
int LiteRtSetOptionsHardwareAccelerators(Options, int accelerators);
int LiteRtCreateModelFromFile(Environment, const char* path, Model*);
int LiteRtGetModelSignature(Model, size_t index, Signature*);
int LiteRtGetNumSignatureOutputs(Signature, size_t* count);
int LiteRtGetSignatureOutputName(Signature, size_t index, const char** name);
int LiteRtGetSignatureInputTensor(Signature, const char* name, Tensor*);
int LiteRtGetSignatureOutputTensor(Signature, const char* name, Tensor*);
int LiteRtGetRankedTensorType(Tensor, TensorType*);
int LiteRtCreateCompiledModel(Environment, Model, Options, CompiledModel*);
int LiteRtCompiledModelResizeInputTensor(CompiledModel, size_t signature, size_t input,
                                         const int* dimensions, size_t rank);
int LiteRtRunCompiledModel(CompiledModel, size_t signature, size_t input_count,
                           TensorBuffer* inputs, size_t output_count, TensorBuffer* outputs);
int LiteRtCreateManagedTensorBuffer(Environment, int buffer_type, const TensorType*, size_t size,
                                    TensorBuffer*);
int LiteRtLockTensorBuffer(TensorBuffer, void** address, int mode);
int LiteRtUnlockTensorBuffer(TensorBuffer);
void LiteRtDestroyTensorBuffer(TensorBuffer);
void LiteRtDestroyCompiledModel(CompiledModel);
void LiteRtDestroyModel(Model);
void LiteRtDestroyOptions(Options);
void LiteRtDestroyEnvironment(Environment);

enum { PIXELS = 64, OUTPUTS = 2 };

static Environment environment;
static Model model;
static CompiledModel compiled;

static void check(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "%s\n", what);
  exit(1);
}

static void check_status(int status, const char* what) {
  if (status == 0) return;
  fprintf(stderr, "%s: LiteRtStatus %d\n", what, status);
  exit(1);
}

static void load(const char* path) {
  Options options;
  check_status(LiteRtCreateEnvironment(0, NULL, &environment), "the environment");
  check_status(LiteRtCreateOptions(&options), "the options");
  check_status(LiteRtSetOptionsHardwareAccelerators(options, ON_CPU), "the options");
  check_status(LiteRtCreateModelFromFile(environment, path, &model), path);
  check_status(LiteRtCreateCompiledModel(environment, model, options, &compiled), path);
  LiteRtDestroyOptions(options);
}

/* Makes the buffer of an input or an output, whose first axis is the batch. */
static TensorBuffer make_buffer(Tensor tensor, int element_type, int batch) {
  TensorType type;
  check_status(LiteRtGetRankedTensorType(tensor, &type), "the type of a tensor");
  check(type.element_type == element_type, "a tensor has another type than the program expects");
  type.layout.dimensions[0] = batch;
  size_t size = 4; /* bytes of a float32 and of an int32 */
  for (unsigned int i = 0; i < type.layout.rank; ++i) size *= (size_t)type.layout.dimensions[i];
  TensorBuffer buffer;
  check_status(LiteRtCreateManagedTensorBuffer(environment, IN_HOST_MEMORY, &type, size, &buffer),
               "a buffer");
  return buffer;
}

/* Copies data into a buffer (TO_WRITE) or out of it (TO_READ). */
static void copy(TensorBuffer buffer, void* data, size_t size, int mode) {
  void* address;
  check_status(LiteRtLockTensorBuffer(buffer, &address, mode), "the memory of a buffer");
  memcpy(mode == TO_WRITE ? address : data, mode == TO_WRITE ? data : address, size);
  check_status(LiteRtUnlockTensorBuffer(buffer), "the memory of a buffer");
}

/* Calls the signature. The names are those of the JAX function: its argument is `image`, the keys
 * of the mapping that it returns are `digit` and `probability`. */
static void classify(float* images, int batch, int32_t* digits, float* probabilities) {
  const int dimensions[] = {batch, PIXELS};
  check_status(LiteRtCompiledModelResizeInputTensor(compiled, 0, 0, dimensions, 2), "the batch");
  Signature signature;
  Tensor tensor;
  check_status(LiteRtGetModelSignature(model, 0, &signature), "the signature");
  check_status(LiteRtGetSignatureInputTensor(signature, "image", &tensor), "image");
  TensorBuffer image = make_buffer(tensor, FLOAT32, batch), outputs[OUTPUTS];
  copy(image, images, (size_t)batch * PIXELS * sizeof *images, TO_WRITE);

  /* The buffers of the outputs are passed in the order of the file. */
  size_t count;
  check_status(LiteRtGetNumSignatureOutputs(signature, &count), "the outputs");
  check(count == OUTPUTS, "the model has another number of outputs");
  int is_digit[OUTPUTS];
  for (size_t i = 0; i < OUTPUTS; ++i) {
    const char* name;
    check_status(LiteRtGetSignatureOutputName(signature, i, &name), "the name of an output");
    check_status(LiteRtGetSignatureOutputTensor(signature, name, &tensor), name);
    is_digit[i] = strcmp(name, "digit") == 0;
    check(is_digit[i] || strcmp(name, "probability") == 0, name);
    outputs[i] = make_buffer(tensor, is_digit[i] ? INT32 : FLOAT32, batch);
  }
  check_status(LiteRtRunCompiledModel(compiled, 0, 1, &image, OUTPUTS, outputs), "the call");
  for (size_t i = 0; i < OUTPUTS; ++i) {
    void* results = is_digit[i] ? (void*)digits : (void*)probabilities;
    copy(outputs[i], results, (size_t)batch * 4, TO_READ);
    LiteRtDestroyTensorBuffer(outputs[i]);
  }
  LiteRtDestroyTensorBuffer(image);
}

static void* read_all(FILE* file, size_t count, size_t size) {
  void* data = calloc(count, size);
  check(data != NULL && fread(data, size, count, file) == count, "the samples end early");
  return data;
}

int main(int argc, char** argv) {
  check(argc == 3, "usage: read_digits MODEL SAMPLES");
  FILE* file = fopen(argv[2], "rb");
  check(file != NULL, "the samples cannot be opened");
  int32_t* count = read_all(file, 1, sizeof *count);
  check(*count > 0, "there are no samples");
  size_t batch = (size_t)*count;
  float* images = read_all(file, batch * PIXELS, sizeof *images);
  int32_t* labels = read_all(file, batch, sizeof *labels);
  fclose(file);
  int32_t* digits = calloc(batch, sizeof *digits);
  float* probabilities = calloc(batch, sizeof *probabilities);
  check(digits != NULL && probabilities != NULL, "there is no memory for the results");

  load(argv[1]);
  classify(images, *count, digits, probabilities);
  int right = 0;
  for (size_t i = 0; i < batch; ++i) {
    printf("%d %.7f\n", (int)digits[i], probabilities[i]);
    right += digits[i] == labels[i];
  }
  printf("%d of %d right\n", right, (int)batch);

  LiteRtDestroyCompiledModel(compiled);
  LiteRtDestroyModel(model);
  LiteRtDestroyEnvironment(environment);
  free(probabilities), free(digits), free(labels), free(images), free(count);
  return 0;
}
