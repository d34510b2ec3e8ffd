/* Calls the signatures of one loaded SavedModel from many threads at once, as TensorFlow Serving
 * does.
 *
 *   serve REQUESTS ANSWERS THREADS SECONDS
 *
 * REQUESTS has the folder, then a uint32 count and for each request: a uint32 count of feeds, each
 * the name of a graph tensor and a tensor; a uint32 count of names to fetch. Every thread sends all
 * requests in turn, each beginning with another one. What a request is answered first is its answer
 * in ANSWERS, as the fetched tensors; every later answer has to have the same bytes. Both files are
 * as tensors.h says.
 *
 * It is warm a second after all requests have been answered, and ends SECONDS later. It prints the
 * number of answers, of errors, and of answers that differ, and the resident memory in bytes when it
 * was warm and at the end.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "tensors.h"

typedef struct {
  uint32_t feeds, fetches;
  TF_Output *inputs, *outputs;
  TF_Tensor **values, **answer;
  pthread_mutex_t lock;
} Request;

static TF_Session* session;
static Request* requests;
static uint32_t request_count;
static atomic_uint begun; /* requests that have an answer */
static atomic_int stop;
static atomic_long answered, failed, differing;

static void pause_for(double seconds) {
  struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  while (nanosleep(&time, &time)) continue;
}

static long resident(void) {
  long total, pages;
  FILE* file = fopen("/proc/self/statm", "r");
  if (file == NULL || fscanf(file, "%ld %ld", &total, &pages) != 2) die("no memory is told");
  fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}

static TF_Output find_or_die(TF_Graph* graph, const char* name, TF_Status* status) {
  TF_Output output = find(graph, name, status);
  if (TF_GetCode(status) != TF_OK) die(TF_Message(status));
  return output;
}

static void read_request(FILE* file, TF_Graph* graph, TF_Status* status, Request* request) {
  request->feeds = read_count(file);
  request->inputs = allocate(request->feeds, sizeof(TF_Output));
  request->values = allocate(request->feeds, sizeof(TF_Tensor*));
  for (uint32_t i = 0; i < request->feeds; ++i) {
    char* name = read_string(file);
    request->inputs[i] = find_or_die(graph, name, status);
    request->values[i] = read_tensor(file);
    free(name);
  }
  request->fetches = read_count(file);
  request->outputs = allocate(request->fetches, sizeof(TF_Output));
  for (uint32_t i = 0; i < request->fetches; ++i) {
    char* name = read_string(file);
    request->outputs[i] = find_or_die(graph, name, status);
    free(name);
  }
  pthread_mutex_init(&request->lock, NULL);
}

static int same(const TF_Tensor* one, const TF_Tensor* other) {
  return TF_TensorByteSize(one) == TF_TensorByteSize(other) &&
         !memcmp(TF_TensorData(one), TF_TensorData(other), TF_TensorByteSize(one));
}

/* Takes the results of a request: the first ones are kept. */
static void judge(Request* request, TF_Tensor** results) {
  pthread_mutex_lock(&request->lock);
  int first = request->answer == NULL;
  if (first) request->answer = results;
  pthread_mutex_unlock(&request->lock);
  begun += (unsigned)first;
  if (first) return;
  for (uint32_t i = 0; i < request->fetches; ++i) {
    if (!same(request->answer[i], results[i])) ++differing;
    TF_DeleteTensor(results[i]);
  }
  free(results);
}

static void* send_all(void* argument) {
  TF_Status* status = TF_NewStatus();
  for (uint32_t next = *(uint32_t*)argument; !stop; ++next) {
    Request* request = &requests[next % request_count];
    TF_Tensor** results = allocate(request->fetches, sizeof *results);
    TF_SessionRun(session, NULL, request->inputs, request->values, (int)request->feeds,
                  request->outputs, results, (int)request->fetches, NULL, 0, NULL, status);
    ++answered;
    if (TF_GetCode(status) == TF_OK) {
      judge(request, results);
      continue;
    }
    if (++failed == 1) fprintf(stderr, "%s\n", TF_Message(status));
    free(results);
    break;
  }
  TF_DeleteStatus(status);
  return NULL;
}

static void write_answers(const char* path) {
  FILE* file = fopen(path, "wb");
  if (file == NULL) die("the answers cannot be opened");
  for (uint32_t i = 0; i < request_count; ++i) {
    for (uint32_t j = 0; j < requests[i].fetches; ++j) write_tensor(file, requests[i].answer[j]);
  }
  if (fclose(file)) die("the answers cannot be written");
}

int main(int argc, char** argv) {
  if (argc != 5) die("usage: serve REQUESTS ANSWERS THREADS SECONDS");
  FILE* file = fopen(argv[1], "rb");
  if (file == NULL) die("the requests cannot be opened");
  TF_Status* status = TF_NewStatus();
  TF_Graph* graph = TF_NewGraph();
  TF_SessionOptions* options = TF_NewSessionOptions();
  const char* tags[] = {"serve"};
  char* folder = read_string(file);
  session = TF_LoadSessionFromSavedModel(options, NULL, folder, tags, 1, graph, NULL, status);
  if (session == NULL) die(TF_Message(status));
  request_count = read_count(file);
  requests = allocate(request_count, sizeof *requests);
  for (uint32_t i = 0; i < request_count; ++i) read_request(file, graph, status, &requests[i]);

  uint32_t count = (uint32_t)atoi(argv[3]);
  pthread_t* threads = allocate(count, sizeof *threads);
  uint32_t* firsts = allocate(count, sizeof *firsts);
  for (uint32_t i = 0; i < count; ++i) {
    firsts[i] = i;
    if (pthread_create(&threads[i], NULL, send_all, &firsts[i])) die("a thread cannot be started");
  }
  while (begun < request_count && !failed) pause_for(0.01);
  pause_for(1);
  long before = resident();
  if (!failed) pause_for(atof(argv[4]));
  stop = 1;
  for (uint32_t i = 0; i < count; ++i) pthread_join(threads[i], NULL);
  printf("%ld %ld %ld %ld %ld\n", answered, failed, differing, before, resident());
  if (!failed) write_answers(argv[2]);
  return 0;
}
