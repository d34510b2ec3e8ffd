/* Runs signatures of SavedModels through TensorFlow's C API, as TensorFlow Serving does.
 *
 *   load_and_run REQUESTS ANSWERS
 *
 * REQUESTS is a uint32 count and for each run: the folder, or an empty string for the session of the
 * run before, whose variables have what that has assigned; a uint32 count of feeds, each the name of
 * a graph tensor and a tensor; a uint32 count of names to fetch. ANSWERS has for each run a string,
 * empty or an error's message, and after an empty one the fetched tensors. Both are as tensors.h
 * says.
 */
#include "tensors.h"

static TF_Graph* graph;
static TF_Session* session;

static void load(const char* folder, TF_Status* status) {
  TF_Status* ignored = TF_NewStatus();
  if (session != NULL) TF_DeleteSession(session, ignored);
  TF_DeleteStatus(ignored);
  TF_DeleteGraph(graph);
  graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  session = TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, graph, NULL, status);
  TF_DeleteSessionOptions(options);
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
  if (*folder) load(folder, status);
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
