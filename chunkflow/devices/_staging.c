/* What a staging thread does piece after piece, without Python's lock: fill a pinned slot and enqueue its upload,
 * or enqueue a download and store what landed. The loops are those of chunkflow/crews.py, for pieces that are a run or
 * rows in the store; whatever goes wrong in the store is left to them, which know how to say it.
 *
 * Knows the CUDA driver as eight functions whose addresses it is given, so it needs no CUDA to be built, and a test can
 * hand it others.
 *
 * Beside that: a file read in one call; and at the end, what NumPy allocates during a call.
 */
#define _GNU_SOURCE
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct {  /* CUDA_MEMCPY2D of the driver's interface */
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    uint64_t src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    int dst_type;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
} Copy2D;

typedef struct {  /* CUDA_MEMCPY3D */
    size_t src_x, src_y, src_z, src_level;
    int src_type;
    const void *src_host;
    uint64_t src_device;
    void *src_array, *src_reserved;
    size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_level;
    int dst_type;
    void *dst_host;
    uint64_t dst_device;
    void *dst_array, *dst_reserved;
    size_t dst_pitch, dst_height;
    size_t width, height, depth;
} Copy3D;

enum { ON_HOST = 1, ON_DEVICE = 2 };  /* CUmemorytype */
enum { INVALID_VALUE = 1 };           /* CUresult */

typedef struct {
    int (*upload)(uint64_t, const void *, size_t, void *);
    int (*download)(void *, uint64_t, size_t, void *);
    int (*copy2d)(const Copy2D *, void *);
    int (*copy3d)(const Copy3D *, void *);
    int (*record)(void *, void *);
    int (*synchronize)(void *);
    int (*elapsed)(float *, void *, void *);
    int (*wait)(void *, void *, unsigned);
} Driver;

/* Tables of 64-bit integers that chunkflow/devices/moving.py lays out. */
typedef struct { int64_t next, number, host, fd, device, mapped, size, width, height, pitch, plane, swap; } Share;
typedef struct { int64_t offset, nbytes, first, count, lands; } Piece;  /* offset in the region, gaps left out; copies */
typedef struct { int64_t slot, device, pitch, width, height, plane, depth; } Copy;  /* offsets in slot and block */
typedef struct { int64_t stream, turn, number, clock, landing, room; } Thread;
typedef struct { int64_t slot, done, begun, pending, failed; } Station;

typedef struct { double stage, begin, end, nbytes; } Span;
enum { READ, UPLOAD, DOWNLOAD, WRITE };

typedef struct {
    const Driver *driver;
    Thread *thread;
    Station *stations;
    Share *share;
    const Piece *pieces;
    const Copy *copies;
    Span *spans;  /* NULL where nobody asks for times */
    Py_ssize_t spanned, most;
    double start;  /* of the device's clock */
    int status;    /* of the driver */
    Py_ssize_t moved, failed;
} Work;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void span(Work *w, int stage, double begin, double end, int64_t nbytes) {
    if (w->spans && w->spanned < w->most) w->spans[w->spanned++] = (Span){stage, begin, end, nbytes};
}

static double reached(Work *w, int64_t event) {
    float elapsed = 0;  /* milliseconds */
    w->driver->elapsed(&elapsed, (void *)w->thread->clock, (void *)event);
    return w->start + elapsed * 1e-3;
}

/* Wait for a station's copy, if there is one, and report its time. */
static int settle(Work *w, Station *station, int stage) {
    if (station->pending) {
        int64_t nbytes = station->pending;
        station->pending = 0;
        if ((w->status = w->driver->synchronize((void *)station->done))) return -1;
        if (w->spans && station->begun) span(w, stage, reached(w, station->begun), reached(w, station->done), nbytes);
    }
    return 0;
}

/* Enqueue one copy between a slot and the block. */
static int direct(const Driver *driver, char *slot, uint64_t device, const Copy *c, int up, void *stream) {
    if (c->height == 1)
        return up ? driver->upload(device, slot, c->width, stream) : driver->download(slot, device, c->width, stream);
    Copy2D rows = {.width = c->width, .height = c->height};
    if (up) {
        rows.src_type = ON_HOST, rows.src_host = slot, rows.src_pitch = c->width;
        rows.dst_type = ON_DEVICE, rows.dst_device = device, rows.dst_pitch = c->pitch;
    } else {
        rows.src_type = ON_DEVICE, rows.src_device = device, rows.src_pitch = c->pitch;
        rows.dst_type = ON_HOST, rows.dst_host = slot, rows.dst_pitch = c->width;
    }
    return driver->copy2d(&rows, stream);
}

/* Enqueue one copy on the device, between where a piece lands and the block. */
static int spread(const Driver *driver, uint64_t landing, uint64_t device, const Copy *c, int up, void *stream) {
    Copy3D box = {.width = c->width, .height = c->height, .depth = c->depth};
    size_t high = c->depth > 1 ? c->plane / c->pitch : c->height;
    box.src_type = box.dst_type = ON_DEVICE;
    if (up) {
        box.src_device = landing, box.src_pitch = c->width, box.src_height = c->height;
        box.dst_device = device, box.dst_pitch = c->pitch, box.dst_height = high;
    } else {
        box.src_device = device, box.src_pitch = c->pitch, box.src_height = high;
        box.dst_device = landing, box.dst_pitch = c->width, box.dst_height = c->height;
    }
    return driver->copy3d(&box, stream);
}

/* Enqueue a piece's copies between its slot and the block, between marks. The slot is free, or full, at the second one:
 * what is spread on the device after an upload need not be waited for by whoever fills the slot again.
 */
static int enqueue(Work *w, Station *station, const Piece *piece, int up) {
    const Driver *driver = w->driver;
    void *stream = (void *)w->thread->stream;
    char *slot = (char *)station->slot;
    uint64_t landing = w->thread->landing;
    if (piece->lands && piece->nbytes > w->thread->room) return w->status = INVALID_VALUE;
    if (station->begun && (w->status = driver->record((void *)station->begun, stream))) return -1;
    if (piece->lands && up && ((w->status = driver->upload(landing, slot, piece->nbytes, stream)) ||
                               (w->status = driver->record((void *)station->done, stream))))
        return -1;
    for (const Copy *c = w->copies + piece->first, *end = c + piece->count; c < end; c++) {
        uint64_t device = w->share->device + c->device;
        w->status = piece->lands ? spread(driver, landing + c->slot, device, c, up, stream)
                                 : direct(driver, slot + c->slot, device, c, up, stream);
        if (w->status) return -1;
    }
    if (piece->lands && !up && (w->status = driver->download(slot, landing, piece->nbytes, stream))) return -1;
    if (!(piece->lands && up) && (w->status = driver->record((void *)station->done, stream))) return -1;
    station->pending = piece->nbytes;
    return 0;
}

/* Move a piece between its slot and the store; -1 if it can't be moved whole. */
static int transfer(const Share *share, char *slot, const Piece *piece, int out) {
    struct stat now;
    if (share->mapped >= 0 && (fstat((int)share->mapped, &now) || now.st_size < share->size)) return -1;
    for (int64_t done = 0; done < piece->nbytes;) {
        int64_t row = (piece->offset + done) / share->width, column = (piece->offset + done) % share->width;
        int64_t there = share->host + row / share->height * share->plane + row % share->height * share->pitch + column;
        size_t left = piece->nbytes - done;
        if ((int64_t)left > share->width - column) left = share->width - column;
        ssize_t n = left;
        if (share->fd < 0)
            memcpy(out ? (void *)there : slot + done, out ? slot + done : (void *)there, left);
        else
            n = out ? pwrite((int)share->fd, slot + done, left, there) : pread((int)share->fd, slot + done, left, there);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        done += n;
    }
    return 0;
}

#define REVERSE(bits) \
    for (uint##bits##_t *v = (void *)slot, *end = v + nbytes / (bits / 8); v < end; v++) *v = __builtin_bswap##bits(*v)

/* Reverse the bytes of each number in a slot, which is still in the cache; of no number if `width` is 0. */
static void reverse(char *slot, int64_t nbytes, int64_t width) {
    if (width == 2) REVERSE(16);
    if (width == 4) REVERSE(32);
    if (width == 8) REVERSE(64);
}

/* The number of a piece that no other thread has taken, or -1. */
static int64_t take(Share *share) {
    int64_t i = __atomic_fetch_add(&share->next, 1, __ATOMIC_RELAXED);
    return i < share->number ? i : -1;
}

static void feed(Work *w) {
    int64_t i;
    while (!w->status && !w->failed && (i = take(w->share)) >= 0) {
        const Piece *piece = w->pieces + i;
        Station *station = w->stations + w->thread->turn;
        w->thread->turn = (w->thread->turn + 1) % w->thread->number;
        if (settle(w, station, UPLOAD)) return;
        double begin = w->spans ? now() : 0;
        if (transfer(w->share, (char *)station->slot, piece, 0)) {
            station->failed = i;
            w->failed++;
            return;
        }
        reverse((char *)station->slot, piece->nbytes, w->share->swap);
        if (w->spans) span(w, READ, begin, now(), piece->nbytes);
        if (enqueue(w, station, piece, 1)) return;
        w->moved++;
    }
}

static void finish(Work *w) {
    for (int64_t k = 0; k < w->thread->number; k++)
        if (settle(w, w->stations + k, UPLOAD)) return;
}

static void drain(Work *w) {
    int64_t number = w->thread->number, flying = 0, first = w->thread->turn;
    int64_t held[64];
    int more = 1;
    while (more || flying) {
        int64_t i = more && flying < number && !w->failed ? take(w->share) : -1;
        if (i >= 0) {
            int64_t k = (first + flying) % number;
            held[k] = i;
            if (enqueue(w, w->stations + k, w->pieces + i, 0)) return;
            flying++;
            continue;
        }
        if (flying < number || w->failed) more = 0;
        if (!flying) continue;
        Station *station = w->stations + first;
        const Piece *piece = w->pieces + held[first];
        if (settle(w, station, DOWNLOAD)) return;
        double begin = w->spans ? now() : 0;
        reverse((char *)station->slot, piece->nbytes, w->share->swap);
        if (transfer(w->share, (char *)station->slot, piece, 1)) {
            reverse((char *)station->slot, piece->nbytes, w->share->swap);  /* for those who try it again */
            station->failed = held[first];
            w->failed++;
        } else {
            if (w->spans) span(w, WRITE, begin, now(), piece->nbytes);
            w->moved++;
        }
        first = (first + 1) % number;
        flying--;
    }
    w->thread->turn = first;
}

/* Whether these can be a driver and a thread's table. */
static int fits(const Py_buffer *driver, const Py_buffer *thread) {
    const Thread *head = thread->buf;
    return driver->len == sizeof(Driver) && thread->len >= (Py_ssize_t)sizeof(Thread) && head->number >= 1 &&
           head->number <= 64 && thread->len == (Py_ssize_t)(sizeof(Thread) + head->number * sizeof(Station));
}

/* Let a stream wait for events. */
static int all(const Driver *driver, int64_t stream, const Py_buffer *events) {
    const int64_t *event = events->buf, *end = event + events->len / (Py_ssize_t)sizeof *event;
    int status = 0;
    while (!status && event < end) status = driver->wait((void *)stream, (void *)*event++, 0);
    return status;
}

/* A loop over a share's pieces: behind the events `waits`, and with the event `mark` behind what it has enqueued. */
static PyObject *run(PyObject *args, void (*loop)(Work *)) {
    Py_buffer driver, thread, share, pieces, copies, waits, spans = {0};
    PyObject *times;
    double start;
    long long mark;
    if (!PyArg_ParseTuple(args, "y*w*w*y*y*Ody*L", &driver, &thread, &share, &pieces, &copies, &times, &start, &waits,
                          &mark))
        return NULL;
    PyObject *result = NULL;
    int timed = times != Py_None;
    if (timed && PyObject_GetBuffer(times, &spans, PyBUF_WRITABLE)) goto end;
    Thread *head = thread.buf;
    Share *what = share.buf;
    if (!fits(&driver, &thread) || share.len != sizeof(Share) || head->turn < 0 || head->turn >= head->number ||
        what->width < 1 || what->height < 1 || (what->swap && what->swap != 2 && what->swap != 4 && what->swap != 8) ||
        pieces.len != (Py_ssize_t)(what->number * sizeof(Piece))) {
        PyErr_SetString(PyExc_ValueError, "tables of other sizes than chunkflow.devices.moving makes");
        goto end;
    }
    Work work = {
        .driver = driver.buf,
        .thread = head,
        .stations = (Station *)(head + 1),
        .share = what,
        .pieces = pieces.buf,
        .copies = copies.buf,
        .spans = timed ? spans.buf : NULL,
        .most = timed ? spans.len / (Py_ssize_t)sizeof(Span) : 0,
        .start = start,
    };
    Py_BEGIN_ALLOW_THREADS
    work.status = all(work.driver, head->stream, &waits);
    if (!work.status) loop(&work);
    if (!work.status && mark) work.status = work.driver->record((void *)mark, (void *)head->stream);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("innn", work.status, work.moved, work.failed, work.spanned);
end:
    PyBuffer_Release(&driver);
    PyBuffer_Release(&thread);
    PyBuffer_Release(&share);
    PyBuffer_Release(&pieces);
    PyBuffer_Release(&copies);
    PyBuffer_Release(&waits);
    if (spans.obj) PyBuffer_Release(&spans);
    return result;
}

/* The copies of one piece, of a station that the caller waits for himself. */
static PyObject *one(PyObject *args, int up) {
    Py_buffer driver, thread, pieces, copies;
    Py_ssize_t station, number;
    long long device, after;
    if (!PyArg_ParseTuple(args, "y*w*y*y*LnnL", &driver, &thread, &pieces, &copies, &device, &station, &number, &after))
        return NULL;
    PyObject *result = NULL;
    Thread *head = thread.buf;
    const Piece *piece = (const Piece *)pieces.buf + number;
    if (!fits(&driver, &thread) || station < 0 || station >= head->number || number < 0 ||
        number >= pieces.len / (Py_ssize_t)sizeof(Piece) || piece->first < 0 || piece->count < 0 ||
        piece->first + piece->count > copies.len / (int64_t)sizeof(Copy)) {
        PyErr_SetString(PyExc_ValueError, "tables of other sizes than chunkflow.devices.moving makes");
        goto end;
    }
    Share share = {.device = device};
    Station *with = (Station *)(head + 1) + station;
    Work work = {.driver = driver.buf, .thread = head, .share = &share, .copies = copies.buf};
    Py_BEGIN_ALLOW_THREADS
    if (!enqueue(&work, with, piece, up) && after)
        work.status = work.driver->record((void *)after, (void *)head->stream);
    with->pending = 0;
    Py_END_ALLOW_THREADS
    result = PyLong_FromLong(work.status);
end:
    PyBuffer_Release(&driver);
    PyBuffer_Release(&thread);
    PyBuffer_Release(&pieces);
    PyBuffer_Release(&copies);
    return result;
}

static PyObject *py_send(PyObject *self, PyObject *args) { return one(args, 1); }
static PyObject *py_fetch(PyObject *self, PyObject *args) { return one(args, 0); }

/* Fill a buffer from a file's start, in one go without Python's lock; the file's size, or -1 and the error's number. */
static PyObject *py_read(PyObject *self, PyObject *args) {
    PyObject *path;
    Py_buffer into;
    if (!PyArg_ParseTuple(args, "O&w*", PyUnicode_FSConverter, &path, &into)) return NULL;
    const char *name = PyBytes_AsString(path);
    struct stat found = {0};
    int error = 0;
    Py_BEGIN_ALLOW_THREADS
    int fd;
    do fd = open(name, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0 || fstat(fd, &found)) error = errno;
    int64_t left = found.st_size < into.len ? found.st_size : into.len;
    for (int64_t done = 0; !error && done < left;) {
        ssize_t n = pread(fd, (char *)into.buf + done, left - done, done);
        if (n < 0 && errno != EINTR) error = errno;
        if (n == 0) found.st_size = left = done;  /* it was cut meanwhile */
        if (n > 0) done += n;
    }
    if (fd >= 0) close(fd);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    PyBuffer_Release(&into);
    return error ? Py_BuildValue("Li", -1LL, error) : Py_BuildValue("Li", (long long)found.st_size, 0);
}

static PyObject *py_wait(PyObject *self, PyObject *args) {
    Py_buffer driver, events;
    long long stream;
    int status;
    if (!PyArg_ParseTuple(args, "y*Ly*", &driver, &stream, &events)) return NULL;
    PyObject *result = NULL;
    if (driver.len != sizeof(Driver)) {
        PyErr_SetString(PyExc_ValueError, "a table of another size than chunkflow.devices.moving makes");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    status = all(driver.buf, stream, &events);
    Py_END_ALLOW_THREADS
    result = PyLong_FromLong(status);
end:
    PyBuffer_Release(&driver);
    PyBuffer_Release(&events);
    return result;
}

static PyObject *py_feed(PyObject *self, PyObject *args) { return run(args, feed); }
static PyObject *py_drain(PyObject *self, PyObject *args) { return run(args, drain); }

static PyObject *py_finish(PyObject *self, PyObject *args) { return run(args, finish); }

/* -- What NumPy allocates during a call -----------------------------------------------------------------------------
 *
 * A handler of its data memory (NEP 49) around the one that is in place. It belongs to the caller's context: other
 * threads know nothing of it, and a call within another counts for both. Arrays are freed through the handler that
 * allocated them, by whatever thread and as late as the interpreter's end, so it lives as long as they do. NumPy's
 * functions are looked up in its table when they are needed, so it takes no NumPy to be built.
 */
typedef struct {
    void *of;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *, size_t);
} Allocator;

typedef struct { char name[127]; uint8_t version; Allocator allocator; } Handler;  /* PyDataMem_Handler, version 1 */

typedef struct {
    Handler handler;
    Allocator below;  /* which does the work */
    PyObject *owner;  /* the capsule of that one */
    int64_t live, most;
} Counter;

/* Whoever has a block resized does not say how large it was, so that is kept in front of it; in a cache line of its
 * own, for the block to be aligned as well as the handler below would have it.
 */
enum { FRONT = 64 };

static void *made(Counter *c, char *front, size_t before, size_t nbytes) {
    if (!front) return NULL;
    *(size_t *)front = nbytes;
    int64_t live = __atomic_add_fetch(&c->live, (int64_t)(nbytes - before), __ATOMIC_RELAXED);
    int64_t most = __atomic_load_n(&c->most, __ATOMIC_RELAXED);
    while (live > most)
        if (__atomic_compare_exchange_n(&c->most, &most, live, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) break;
    return front + FRONT;
}

static void *count_malloc(void *of, size_t nbytes) {
    Counter *c = of;
    return nbytes > SIZE_MAX - FRONT ? NULL : made(c, c->below.malloc(c->below.of, FRONT + nbytes), 0, nbytes);
}

static void *count_calloc(void *of, size_t number, size_t each) {
    Counter *c = of;
    size_t nbytes;
    if (__builtin_mul_overflow(number, each, &nbytes) || nbytes > SIZE_MAX - FRONT) return NULL;
    return made(c, c->below.calloc(c->below.of, 1, FRONT + nbytes), 0, nbytes);
}

static void *count_realloc(void *of, void *block, size_t nbytes) {
    Counter *c = of;
    if (!block) return count_malloc(of, nbytes);
    if (nbytes > SIZE_MAX - FRONT) return NULL;
    char *front = (char *)block - FRONT;
    size_t before = *(size_t *)front;
    return made(c, c->below.realloc(c->below.of, front, FRONT + nbytes), before, nbytes);
}

static void count_free(void *of, void *block, size_t nbytes) {
    Counter *c = of;
    if (!block) return;
    char *front = (char *)block - FRONT;
    nbytes = *(size_t *)front;  /* NumPy's own figure is that of the array, which may have got smaller */
    __atomic_sub_fetch(&c->live, (int64_t)nbytes, __ATOMIC_RELAXED);
    c->below.free(c->below.of, front, FRONT + nbytes);
}

static void forget(PyObject *capsule) {
    Counter *c = PyCapsule_GetPointer(capsule, "mem_handler");
    Py_DECREF(c->owner);
    free(c);
}

static PyObject *py_counted(PyObject *self, PyObject *fn) {
    PyObject *module = PyImport_ImportModule("numpy._core._multiarray_umath");
    PyObject *table = module ? PyObject_GetAttrString(module, "_ARRAY_API") : NULL;
    void **numpy = table ? PyCapsule_GetPointer(table, NULL) : NULL;  /* lives as long as the process */
    Py_XDECREF(table);
    Py_XDECREF(module);
    if (!numpy || ((unsigned (*)(void))numpy[0])() >> 24 != 2) {  /* PyArray_GetNDArrayCVersion */
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    PyObject *(*set)(PyObject *) = numpy[304], *(*get)(void) = numpy[305];  /* PyDataMem_SetHandler, _GetHandler */
    PyObject *owner = get();
    if (!owner) return NULL;
    Handler *below = PyCapsule_GetPointer(owner, "mem_handler");
    Counter *c = below ? malloc(sizeof(Counter)) : NULL;
    PyObject *capsule = c ? PyCapsule_New(c, "mem_handler", forget) : NULL;
    if (!capsule) {
        if (below && !c) PyErr_NoMemory();
        free(c);
        Py_DECREF(owner);
        return NULL;
    }
    Handler handler = {"chunkflow", 1, {c, count_malloc, count_calloc, count_realloc, count_free}};
    *c = (Counter){handler, below->allocator, owner, 0, 0};
    PyObject *result = NULL, *kind, *value, *trace, *old = set(capsule);
    if (old) {
        Py_DECREF(old);
        result = PyObject_CallNoArgs(fn);
        PyErr_Fetch(&kind, &value, &trace);
        Py_XDECREF(set(owner));  /* fails for want of memory at the most, and then this one goes on to do its work */
        PyErr_Restore(kind, value, trace);
    }
    long long most = __atomic_load_n(&c->most, __ATOMIC_RELAXED);
    Py_DECREF(capsule);
    return result ? Py_BuildValue("NL", result, most) : NULL;
}

static PyMethodDef methods[] = {
    {"feed", py_feed, METH_VARARGS, "Fill and upload pieces of a share until there are none."},
    {"drain", py_drain, METH_VARARGS, "Download and store pieces of a share until there are none."},
    {"send", py_send, METH_VARARGS, "Enqueue the upload of one piece."},
    {"fetch", py_fetch, METH_VARARGS, "Enqueue the download of one piece."},
    {"read", py_read, METH_VARARGS, "Fill a buffer from a file; the file's size, or -1 and the number of the error."},
    {"finish", py_finish, METH_VARARGS, "Wait for the uploads that feed left on their way."},
    {"wait", py_wait, METH_VARARGS, "Let a stream wait for events."},
    {"counted", py_counted, METH_O, "Call a function; its result and the most bytes that NumPy had allocated at once."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_staging", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__staging(void) { return PyModule_Create(&module); }
