// The handlers that XLA calls, for `native.c`, and what is used of its C interface, in the layout that versions 0.1 to 0.5 share
// (xla/ffi/api/c_api.h). `native.py` asks for the version of jaxlib before it registers anything.

typedef struct Extension {
  size_t size;
  int type;  // 1: asks about the handler
  struct Extension *next;
} Extension;

typedef struct {
  Extension base;
  struct { size_t size; struct { size_t size; void *extension; int major, minor; } version; uint32_t traits; } *metadata;
} Question;

typedef struct { size_t size; void *extension; int dtype; void *data; int64_t rank, *dims; } Buffer;
typedef struct { size_t size; void *extension; int64_t count; int *types; Buffer **buffers; } Buffers;
typedef struct { int dtype; int64_t *value; } Scalar;
typedef struct { size_t size; void *extension; int64_t count; int *types; void **names; Scalar **scalars; } Scalars;
typedef struct {
  size_t size;
  Extension *extension;
  const void *api, *context;
  int stage;
  Buffers in, out;
  Scalars attributes;
} Frame;

enum { XLA_S32 = 4, XLA_S64 = 5, XLA_F32 = 11, XLA_F64 = 12 };

static int answered(const Frame *frame) {
  if (!frame->extension || frame->extension->type != 1) return 0;
  Question *question = (Question *)frame->extension;
  question->metadata->version.major = 0;
  question->metadata->version.minor = 1;
  question->metadata->traits = 0;
  return 1;
}

// Of [n, f], or [n].
static int64_t columns_of(const Buffer *b) { return b->rank > 1 ? b->dims[1] : 1; }

static int dtype_of(const Buffer *b) {
  return b->dtype == XLA_F32 ? 0 : b->dtype == XLA_F64 ? 1 : b->dtype == XLA_S32 ? 2 : 3;
}

// The attribute of all: from bit 0 an `op`; from bit 4 whether a scan is reverse and exclusive, or whether a softmax is its
// logarithm; from bit 8 the number of threads, or 0.
static int64_t mode_of(const Frame *frame) { return *frame->attributes.scalars[0]->value; }

// Takes gates if any, values, heads, the number of live rows; gives the scan.
void *segkernels_scan_handler(const Frame *frame) {
  if (answered(frame)) return NULL;
  const int64_t mode = mode_of(frame), last = frame->in.count - 1;
  Buffer **in = frame->in.buffers, *x = in[last - 2], *live = in[last];
  Scan s = {.x = x->data, .gates = last > 2 ? in[0]->data : NULL, .y = frame->out.buffers[0]->data, .heads = in[last - 1]->data,
            .n = x->dims[0], .f = columns_of(x), .isa = segkernels_best_isa(), .dtype = dtype_of(x), .op = mode & 15,
            .reverse = mode >> 4 & 1, .exclusive = mode >> 5 & 1};
  s.live = live->dtype == XLA_S32 ? *(int32_t *)live->data : *(int64_t *)live->data;
  segkernels_scan(&s, mode >> 8);
  return NULL;
}

// Takes values and offsets.
static BySegment by_segment(const Frame *frame) {
  Buffer *x = frame->in.buffers[0], *offsets = frame->in.buffers[1];
  return (BySegment){.x = x->data, .offsets = offsets->data, .y = frame->out.buffers[0]->data, .n = x->dims[0],
                     .s = offsets->dims[0] - 1, .f = columns_of(x), .isa = segkernels_best_isa(), .dtype = dtype_of(x),
                     .op = mode_of(frame) & 15, .wide = offsets->dtype == XLA_S64, .logarithm = mode_of(frame) >> 4 & 1};
}

void *segkernels_reduce_handler(const Frame *frame) {
  if (answered(frame)) return NULL;
  BySegment s = by_segment(frame);
  segkernels_reduce(&s, mode_of(frame) >> 8);
  return NULL;
}

void *segkernels_softmax_handler(const Frame *frame) {
  if (answered(frame)) return NULL;
  BySegment s = by_segment(frame);
  segkernels_softmax(&s, mode_of(frame) >> 8);
  return NULL;
}
