/* The loops of the transfer threads, without Python's lock: fill a pinned buffer and enqueue its upload, or enqueue a
 * download and store what landed, piece after piece. They do the same as chunkflow/engine/staged/workers.py, for pieces
 * that are a run or rows in the store, and for chunks as they are stored. Errors of stores are left to Python.
 *
 * The CUDA driver is known as eight functions, whose addresses are given. So no CUDA is needed to build this, and tests
 * can give other functions.
 *
 * Threads take their shares from job queues, which are called lines here, also without that lock.
 *
 * Besides, there are functions that read a file in one call, and that copy memory past the caches, and at the end, one
 * that counts what NumPy allocates during a call.
 */
#define _GNU_SOURCE
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

/* Tables of 64-bit integers that chunkflow/devices/mover.py lays out. */
typedef struct { int64_t next, number, host, fd, device, mapped, size, width, height, pitch, plane, since, rows, swap; } Share;
typedef struct { int64_t offset, nbytes, first, count, lands; } Piece;  /* offset in the region, gaps left out; copies */
typedef struct { int64_t host, device, pitch, width, height, plane, depth; } Copy;  /* offsets in buffer and block */
typedef struct { int64_t stream, turn, number, clock, landing, room; } Thread;
typedef struct { int64_t host, done, begun, pending, failed; } Buffer;

static void release(Py_buffer **buffers) {
    while (*buffers) PyBuffer_Release(*buffers++);
}
#define RELEASE(...) release((Py_buffer *[]){__VA_ARGS__, NULL})

typedef struct { double stage, begin, end, nbytes; } Span;
enum { READ, UPLOAD, DOWNLOAD, WRITE };

typedef struct {
    const Driver *driver;
    Thread *thread;
    Buffer *buffers;
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

/* Wait for a buffer's pending copy, if there is one, and report its time. */
static int settle(Work *w, Buffer *buffer, int stage) {
    if (buffer->pending) {
        int64_t nbytes = buffer->pending;
        buffer->pending = 0;
        if ((w->status = w->driver->synchronize((void *)buffer->done))) return -1;
        if (w->spans && buffer->begun) span(w, stage, reached(w, buffer->begun), reached(w, buffer->done), nbytes);
    }
    return 0;
}

/* Enqueue one copy between a buffer and the block; `row` is the bytes of a single row. */
static int direct(const Driver *driver, char *host, uint64_t device, const Copy *c, size_t row, int up, void *stream) {
    if (c->height == 1)
        return up ? driver->upload(device, host, row, stream) : driver->download(host, device, row, stream);
    Copy2D rows = {.width = c->width, .height = c->height};
    if (up) {
        rows.src_type = ON_HOST, rows.src_host = host, rows.src_pitch = c->width;
        rows.dst_type = ON_DEVICE, rows.dst_device = device, rows.dst_pitch = c->pitch;
    } else {
        rows.src_type = ON_DEVICE, rows.src_device = device, rows.src_pitch = c->pitch;
        rows.dst_type = ON_HOST, rows.dst_host = host, rows.dst_pitch = c->width;
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

/* Enqueue a piece's copies between its buffer and the block, between two marks. At the second mark the buffer is free,
 * or full: whoever fills it again need not wait until an upload is spread on the device. A piece that is
 * one run may have fewer bytes than there is room for.
 */
static int enqueue(Work *w, Buffer *buffer, const Piece *piece, int64_t nbytes, int up) {
    const Driver *driver = w->driver;
    void *stream = (void *)w->thread->stream;
    char *host = (char *)buffer->host;
    uint64_t landing = w->thread->landing;
    if (piece->lands && piece->nbytes > w->thread->room) return w->status = INVALID_VALUE;
    if (buffer->begun && (w->status = driver->record((void *)buffer->begun, stream))) return -1;
    if (piece->lands && up && ((w->status = driver->upload(landing, host, piece->nbytes, stream)) ||
                               (w->status = driver->record((void *)buffer->done, stream))))
        return -1;
    for (const Copy *c = w->copies + piece->first, *end = c + piece->count; c < end; c++) {
        uint64_t device = w->share->device + c->device;
        int64_t row = piece->count == 1 ? nbytes : c->width;
        w->status = piece->lands ? spread(driver, landing + c->host, device, c, up, stream)
                                 : direct(driver, host + c->host, device, c, row, up, stream);
        if (w->status) return -1;
    }
    if (piece->lands && !up && (w->status = driver->download(host, landing, piece->nbytes, stream))) return -1;
    if (!(piece->lands && up) && (w->status = driver->record((void *)buffer->done, stream))) return -1;
    buffer->pending = nbytes;
    return 0;
}

/* In place of a file: as many as there are pieces. At `host` lie rows of `width` bytes, each the place in its file where a
 * piece begins, and the file's name; such a file has `size` bytes. At `plane` lies a number of `pitch` bytes: of pieces
 * that hold nothing else there is no file. 0 bytes: of all there is one. Only whole files are written. None is read that
 * was changed after the time `since`.
 */
enum { FILES = -2 };

/* In place of a file: chunks as they are stored (chunkflow/system/native/_chunks.c), `size` of them to a piece. They are at
 * `host`, and at `plane` is the function that fetches some of them: it returns their bytes, or -1.
 */
enum { ENCODED = -3 };
typedef int64_t Fetch(void *chunks, int64_t first, int64_t number, uint8_t *out, int64_t space);

enum { LONG = 4096 };  /* bytes from which on it pays to pass the caches by */

enum { LINE = 64 };  /* bytes of a line of the caches */

#ifdef __SSE2__
static inline void stream_line(char *to, const char *from) {
    const __m128i *s = (const __m128i *)from;
    __m128i a = _mm_loadu_si128(s), b = _mm_loadu_si128(s + 1), c = _mm_loadu_si128(s + 2), d = _mm_loadu_si128(s + 3),
            *t = (__m128i *)to;
    _mm_stream_si128(t, a), _mm_stream_si128(t + 1, b), _mm_stream_si128(t + 2, c), _mm_stream_si128(t + 3, d);
}
#endif

/* Copy to where nobody reads soon: past the caches, or every line there would be fetched before it is overwritten. */
static void copy_out(char *to, const char *from, size_t nbytes) {
#ifdef __SSE2__
    if (nbytes >= LONG) {
        size_t head = -(uintptr_t)to & (LINE - 1);  /* a line of which a part is written at a time takes twice as long */
        memcpy(to, from, head);
        to += head, from += head, nbytes -= head;
        for (; nbytes >= LINE; to += LINE, from += LINE, nbytes -= LINE) stream_line(to, from);
        _mm_sfence();  /* for whoever hears that it is done */
    }
#endif
    memcpy(to, from, nbytes);
}

enum { MOST_AXES = 64 };
enum { SHORT = 512, TOGETHER = 8, AHEAD = 8 * LINE };  /* bytes of a row; rows; bytes that are fetched ahead */

/* Copy rows to where nobody reads soon, several side by side: a core waits for more of memory at once then. */
static void copy_rows(char *to, const char *from, int64_t n, int64_t pitch, int64_t pitch_from, int64_t width) {
    int64_t i = 0;
    if (width >= TOGETHER * LONG) {
        for (; i < n; i++, to += pitch, from += pitch_from) {
            copy_rows(to, from, width / LONG, LONG, LONG, LONG);
            memcpy(to + width / LONG * LONG, from + width / LONG * LONG, width % LONG);
        }
        return;
    }
#ifdef __SSE2__
    for (; width >= SHORT && i + TOGETHER <= n; i += TOGETHER) {
        char *t[TOGETHER];
        const char *f[TOGETHER];
        for (int k = 0; k < TOGETHER; k++, to += pitch, from += pitch_from) {
            size_t head = -(uintptr_t)to & (LINE - 1);
            memcpy(to, from, head);
            t[k] = to + head, f[k] = from + head;
        }
        int64_t whole = (width - LINE) / LINE * LINE;  /* of each of them, wherever its first line begins */
        for (int64_t at = 0; at < whole; at += LINE)
            for (int k = 0; k < TOGETHER; k++) {
                _mm_prefetch(f[k] + at + AHEAD, _MM_HINT_T0);
                stream_line(t[k] + at, f[k] + at);
            }
        for (int k = 0; k < TOGETHER; k++) {
            char *end = to - (TOGETHER - k) * pitch + width;
            memcpy(t[k] + whole, f[k] + whole, end - (t[k] + whole));
        }
    }
    _mm_sfence();
#endif
    for (; i < n; i++, to += pitch, from += pitch_from) memcpy(to, from, width);
}

/* Whether a file was changed after a time, in nanoseconds; no file after 0. */
static int changed(const struct stat *found, int64_t since) {
#ifdef __APPLE__
    struct timespec at = found->st_ctimespec;
#else
    struct timespec at = found->st_ctim;
#endif
    return since && (int64_t)at.tv_sec * 1000000000 + at.tv_nsec > since;
}

/* Fill memory from a place in a file on, as far as either goes; how many bytes the file has, or -1 with `errno`, which is
 * ESTALE if it was changed after the time `since`. A pipe or a device has none: `st_size` is 0.
 */
static int64_t load(const char *name, char *into, int64_t at, int64_t room, int64_t since) {
    struct stat found;
    int fd, error = 0;
    do fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  /* a pipe would be waited for */
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return -1;
    if (fstat(fd, &found)) error = errno;
    else if (changed(&found, since)) error = ESTALE;
    int64_t size = error ? -1 : found.st_size, left = size - at < room ? size - at : room;
    for (int64_t done = 0; !error && done < left;) {
        ssize_t n = pread(fd, into + done, left - done, at + done);
        if (n < 0 && errno != EINTR) error = errno;
        if (n == 0) size = at + done, left = done;  /* it was cut meanwhile */
        if (n > 0) done += n;
    }
    close(fd);
    errno = error;
    return error ? -1 : size;
}

/* Make the directories that a file lies in. */
static void lay(char *name) {
    for (char *end = strchr(name + 1, '/'); end; end = strchr(end + 1, '/')) {
        *end = 0;
        mkdir(name, 0777);  /* most of them are there, and if it can't be made then the file can't, either */
        *end = '/';
    }
}

/* Make a file that has its name when it is complete; -1 if that can't be. As chunkflow/stores/kvstore/folder.py has it. */
static int put(const char *name, const char *from, int64_t nbytes) {
    char temporary[PATH_MAX];
    int length = snprintf(temporary, sizeof temporary, "%s.%ld-%lu.partial", name, (long)getpid(),
                          (unsigned long)pthread_self());
    if (length < 0 || length >= (int)sizeof temporary) return -1;
    /* Others could guess the name: what has it already is removed, and no link is followed. */
    int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, fd = open(temporary, flags, 0666);
    if (fd < 0 && (errno == ENOENT || errno == EEXIST)) {
        if (errno == ENOENT) lay(temporary);
        else unlink(temporary);
        fd = open(temporary, flags, 0666);
    }
    if (fd < 0) return -1;
    int64_t done = 0;
    for (ssize_t n = 1; n && done < nbytes;) {
        n = write(fd, from + done, nbytes - done);
        if (n > 0) done += n;
        else if (n < 0 && errno != EINTR) break;
    }
    if (!close(fd) && done == nbytes && !rename(temporary, name)) return 0;
    unlink(temporary);
    return -1;
}

/* Whether memory holds the same `width` bytes again and again. */
static int repeats(const char *host, int64_t nbytes, const char *number, int64_t width) {
    return nbytes >= width && !memcmp(host, number, width) && !memcmp(host, host + width, nbytes - width);
}

/* Move a piece between its buffer and its file. */
static int file(const Share *share, char *host, int64_t number, int64_t nbytes, int out) {
    const char *row = (const char *)share->host + number * share->width, *name = row + sizeof(int64_t);
    int64_t at;
    memcpy(&at, row, sizeof at);
    if (!*name) return -1;
    if (!out) return load(name, host, at, nbytes, share->since) == share->size ? 0 : -1;
    if (share->pitch && repeats(host, nbytes, (const char *)share->plane, share->pitch))
        return unlink(name) && errno != ENOENT ? -1 : 0;
    return put(name, host, nbytes);
}

/* Items that follow one another backwards, or of which every other one is wanted, are moved several at a time. */
#define GATHER(bits) do { \
    typedef uint##bits##_t Item __attribute__((aligned(1), may_alias)); \
    Item *restrict t = (Item *)to; \
    const Item *restrict f = (const Item *)from; \
    if (pitch == -(bits / 8)) for (int64_t i = 0; i < n; i++) t[i] = f[-i]; \
    else if (pitch == 2 * (bits / 8)) for (int64_t i = 0; i < n; i++) t[i] = f[2 * i]; \
    else for (int64_t i = 0; i < n; i++, from += pitch) memcpy(t + i, from, bits / 8); \
} while (0)

/* For processors of today beside those of any age, where a program can choose when it is loaded. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define CLONED __attribute__((target_clones("avx2", "default")))
#else
#define CLONED
#endif

/* Copy short rows from memory, one after the other; how many bytes that were: 0 of rows that are not so short. */
CLONED static int64_t gather(char *to, const char *from, int64_t n, int64_t pitch, int64_t width) {
    if (width == 1) GATHER(8);
    else if (width == 2) GATHER(16);
    else if (width == 4) GATHER(32);
    else if (width == 8) GATHER(64);
    else if (width == 16) for (int64_t i = 0; i < n; i++, from += pitch) memcpy(to + i * 16, from, 16);
    else return 0;
    return n * width;
}

/* Move a piece between its buffer and the store; -1 if it can't be moved whole. */
static int transfer(const Work *w, char *host, int64_t number, int out) {
    const Share *share = w->share;
    const Piece *piece = w->pieces + number;
    if (share->fd == FILES) return file(share, host, number, piece->nbytes, out);
    const int64_t *rows = (const int64_t *)share->rows;  /* where each row of a plane begins, if they lie anyhow */
    struct stat now;
    if (share->mapped >= 0 && (fstat((int)share->mapped, &now) || now.st_size < share->size)) return -1;
    for (int64_t done = 0; done < piece->nbytes;) {
        int64_t row = (piece->offset + done) / share->width, column = (piece->offset + done) % share->width;
        int64_t in_plane = row % share->height, start = rows ? rows[in_plane] : in_plane * share->pitch;
        int64_t there = share->host + row / share->height * share->plane + start + column;
        size_t left = piece->nbytes - done;
        if (share->fd < 0 && !out && !column && !rows) {
            int64_t below = share->height - in_plane, most = (int64_t)left / share->width;
            int64_t copied = gather(host + done, (char *)there, below < most ? below : most, share->pitch, share->width);
            done += copied;
            if (copied) continue;
        }
        if (share->fd < 0 && out && !column && !rows && (int64_t)left > share->width) {
            int64_t below = share->height - in_plane, most = (int64_t)left / share->width, n = below < most ? below : most;
            copy_rows((char *)there, host + done, n, share->pitch, share->width, share->width);
            done += n * share->width;
            continue;
        }
        if ((int64_t)left > share->width - column) left = share->width - column;
        ssize_t n = left;
        if (share->fd < 0 && out)
            copy_out((char *)there, host + done, left);
        else if (share->fd < 0)
            memcpy(host + done, (void *)there, left);
        else
            n = out ? pwrite((int)share->fd, host + done, left, there) : pread((int)share->fd, host + done, left, there);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        done += n;
    }
    return 0;
}

#define REVERSE(bits) \
    for (uint##bits##_t *v = (void *)host, *end = v + nbytes / (bits / 8); v < end; v++) *v = __builtin_bswap##bits(*v)

/* Reverse the bytes of each number in a buffer, which is still in the cache; of no number if `width` is 0. */
static void reverse(char *host, int64_t nbytes, int64_t width) {
    if (width == 2) REVERSE(16);
    if (width == 4) REVERSE(32);
    if (width == 8) REVERSE(64);
}

/* The number of a piece that no other thread has taken, or -1. */
static int64_t take(Share *share) {
    int64_t i = __atomic_fetch_add(&share->next, 1, __ATOMIC_RELAXED);
    return i < share->number ? i : -1;
}

/* Fill a buffer with a piece; its bytes, or -1 if that can't be done here. */
static int64_t fill(const Work *w, char *host, int64_t number) {
    const Share *share = w->share;
    int64_t nbytes = w->pieces[number].nbytes;
    if (share->fd == ENCODED)
        return ((Fetch *)share->plane)((void *)share->host, number * share->size, share->size, (uint8_t *)host, nbytes);
    if (transfer(w, host, number, 0)) return -1;
    reverse(host, nbytes, share->swap);
    return nbytes;
}

static void feed(Work *w) {
    int64_t i;
    while (!w->status && !w->failed && (i = take(w->share)) >= 0) {
        Buffer *buffer = w->buffers + w->thread->turn;
        w->thread->turn = (w->thread->turn + 1) % w->thread->number;
        if (settle(w, buffer, UPLOAD)) return;
        double begin = w->spans ? now() : 0;
        int64_t nbytes = fill(w, (char *)buffer->host, i);
        if (w->spans) span(w, READ, begin, now(), nbytes < 0 ? 0 : nbytes);  /* what is there counts once it is sent */
        if (nbytes < 0) {
            buffer->failed = i;
            w->failed++;
            return;
        }
        if (enqueue(w, buffer, w->pieces + i, nbytes, 1)) return;
        w->moved++;
    }
}

static void finish(Work *w) {
    for (int64_t k = 0; k < w->thread->number; k++)
        if (settle(w, w->buffers + k, UPLOAD)) return;
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
            if (enqueue(w, w->buffers + k, w->pieces + i, w->pieces[i].nbytes, 0)) return;
            flying++;
            continue;
        }
        if (flying < number || w->failed) more = 0;
        if (!flying) continue;
        Buffer *buffer = w->buffers + first;
        const Piece *piece = w->pieces + held[first];
        if (settle(w, buffer, DOWNLOAD)) return;
        double begin = w->spans ? now() : 0;
        reverse((char *)buffer->host, piece->nbytes, w->share->swap);
        if (transfer(w, (char *)buffer->host, held[first], 1)) {
            reverse((char *)buffer->host, piece->nbytes, w->share->swap);  /* for those who try it again */
            buffer->failed = held[first];
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
           head->number <= 64 && thread->len == (Py_ssize_t)(sizeof(Thread) + head->number * sizeof(Buffer)) &&
           head->turn >= 0 && head->turn < head->number;
}

/* Let a stream wait for events. */
static int all(const Driver *driver, int64_t stream, const Py_buffer *events) {
    const int64_t *event = events->buf, *end = event + events->len / (Py_ssize_t)sizeof *event;
    int status = 0;
    while (!status && event < end) status = driver->wait((void *)stream, (void *)*event++, 0);
    return status;
}

/* Whether these can be a share and its pieces. */
static int whole(const Py_buffer *share, const Py_buffer *pieces) {
    const Share *what = share->buf;
    return share->len == sizeof(Share) && what->width >= 1 && what->height >= 1 &&
           (!what->swap || what->swap == 2 || what->swap == 4 || what->swap == 8) &&
           pieces->len == (Py_ssize_t)(what->number * sizeof(Piece));
}

/* What moves pieces for one thread. */
static Work work_of(const Py_buffer *driver, const Py_buffer *thread, const Py_buffer *spans, double start) {
    return (Work){
        .driver = driver->buf,
        .thread = thread->buf,
        .buffers = (Buffer *)((Thread *)thread->buf + 1),
        .spans = spans->obj ? spans->buf : NULL,
        .most = spans->obj ? spans->len / (Py_ssize_t)sizeof(Span) : 0,
        .start = start,
    };
}

/* Let it move pieces of a share, behind the events `waits`. */
static void move(Work *w, const Py_buffer *share, const Py_buffer *pieces, const Py_buffer *copies,
                 const Py_buffer *waits, void (*loop)(Work *)) {
    w->share = share->buf, w->pieces = pieces->buf, w->copies = copies->buf;
    w->moved = w->failed = 0;
    w->status = all(w->driver, w->thread->stream, waits);
    if (!w->status) loop(w);
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
    if (times != Py_None && PyObject_GetBuffer(times, &spans, PyBUF_WRITABLE)) goto end;
    if (!fits(&driver, &thread) || !whole(&share, &pieces)) {
        PyErr_SetString(PyExc_ValueError, "tables of other sizes than chunkflow.devices.mover makes");
        goto end;
    }
    Work work = work_of(&driver, &thread, &spans, start);
    Py_BEGIN_ALLOW_THREADS
    move(&work, &share, &pieces, &copies, &waits, loop);
    if (!work.status && mark) work.status = work.driver->record((void *)mark, (void *)work.thread->stream);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("innn", work.status, work.moved, work.failed, work.spanned);
end:
    RELEASE(&driver, &thread, &share, &pieces, &copies, &waits, &spans);
    return result;
}

/* Enqueue the copies of one piece. With `keep` the loops wait for them before they use the buffer again. */
static PyObject *one(PyObject *args, int up) {
    Py_buffer driver, thread, pieces, copies;
    Py_ssize_t buffer, number;
    long long device, after;
    int keep;
    if (!PyArg_ParseTuple(args, "y*w*y*y*LnnLp", &driver, &thread, &pieces, &copies, &device, &buffer, &number, &after,
                          &keep))
        return NULL;
    PyObject *result = NULL;
    Thread *head = thread.buf;
    const Piece *piece = (const Piece *)pieces.buf + number;
    if (!fits(&driver, &thread) || buffer < 0 || buffer >= head->number || number < 0 ||
        number >= pieces.len / (Py_ssize_t)sizeof(Piece) || piece->first < 0 || piece->count < 0 ||
        piece->first + piece->count > copies.len / (int64_t)sizeof(Copy)) {
        PyErr_SetString(PyExc_ValueError, "tables of other sizes than chunkflow.devices.mover makes");
        goto end;
    }
    Share share = {.device = device};
    Buffer *with = (Buffer *)(head + 1) + buffer;
    Work work = {.driver = driver.buf, .thread = head, .share = &share, .copies = copies.buf};
    Py_BEGIN_ALLOW_THREADS
    if (!enqueue(&work, with, piece, piece->nbytes, up) && after)
        work.status = work.driver->record((void *)after, (void *)head->stream);
    if (!keep || work.status) with->pending = 0;
    Py_END_ALLOW_THREADS
    result = PyLong_FromLong(work.status);
end:
    RELEASE(&driver, &thread, &pieces, &copies);
    return result;
}

static PyObject *py_send(PyObject *self, PyObject *args) { return one(args, 1); }
static PyObject *py_fetch(PyObject *self, PyObject *args) { return one(args, 0); }

/* Fill a buffer from a file's start, in one go without Python's lock; the file's size, or -1 and the error's number. It
 * may not have been changed after a time.
 */
static PyObject *py_read(PyObject *self, PyObject *args) {
    PyObject *path;
    Py_buffer into;
    long long since = 0;
    if (!PyArg_ParseTuple(args, "O&w*|L", PyUnicode_FSConverter, &path, &into, &since)) return NULL;
    const char *name = PyBytes_AsString(path);
    int64_t size;
    int error;
    Py_BEGIN_ALLOW_THREADS
    size = load(name, into.buf, 0, into.len, since);
    error = size < 0 ? errno : 0;
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    PyBuffer_Release(&into);
    return Py_BuildValue("Li", (long long)size, error);
}

typedef struct { int64_t number, to, from; } Axis;  /* and steps, in bytes */

/* Copy a row whose items lie the other way round: `from` is the last one in memory. */
static void turn(char *to, const char *from, int64_t nbytes, int64_t item) {
    char piece[2 * LONG];
    for (int64_t done = 0; done < nbytes;) {
        int64_t left = nbytes - done, n = (left < 2 * LONG ? left : 2 * LONG) / item;
        gather(piece, from - done, n, -item, item);
        copy_out(to + done, piece, n * item);
        done += n * item;
    }
}

static PyObject *py_copy(PyObject *self, PyObject *args) {
    long long to, from, width, turned;
    Py_buffer table;
    if (!PyArg_ParseTuple(args, "LLLLy*", &to, &from, &width, &turned, &table)) return NULL;
    Py_ssize_t number = table.len / (Py_ssize_t)sizeof(Axis);
    const Axis *axes = table.buf, *rows = axes + number - 1;
    int64_t at[MOST_AXES] = {0}, left = 1;
    if (number < 1 || number > MOST_AXES || table.len % (Py_ssize_t)sizeof(Axis)) {
        PyBuffer_Release(&table);
        PyErr_SetString(PyExc_ValueError, "a table of other axes than chunkflow.stores.strides makes");
        return NULL;
    }
    for (Py_ssize_t a = 0; a + 1 < number; a++) left *= axes[a].number;
    Py_BEGIN_ALLOW_THREADS
    while (left-- > 0) {
        if (!turned) copy_rows((char *)to, (const char *)from, rows->number, rows->to, rows->from, width);
        else
            for (int64_t i = 0; i < rows->number; i++)
                turn((char *)to + i * rows->to, (const char *)from + i * rows->from, width, turned);
        for (Py_ssize_t a = number - 2; a >= 0; a--) {  /* on to the next plane */
            to += axes[a].to, from += axes[a].from;
            if (++at[a] < axes[a].number) break;
            to -= at[a] * axes[a].to, from -= at[a] * axes[a].from, at[a] = 0;
        }
    }
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&table);
    Py_RETURN_NONE;
}

static PyObject *py_join(PyObject *self, PyObject *args) {
    PyObject *given, *result = NULL;
    Py_buffer into, *pieces = NULL;
    if (!PyArg_ParseTuple(args, "w*O", &into, &given)) return NULL;
    Py_ssize_t held = 0, total = 0, number = PySequence_Size(given);
    if (number < 0) goto end;
    if (!(pieces = calloc(number ? number : 1, sizeof(Py_buffer)))) {
        PyErr_NoMemory();
        goto end;
    }
    for (; held < number; held++) {
        PyObject *one = PySequence_GetItem(given, held);
        if (!one) goto end;
        int refused = PyObject_GetBuffer(one, &pieces[held], PyBUF_SIMPLE);
        Py_DECREF(one);
        if (refused) goto end;
        total += pieces[held].len;
    }
    if (total != into.len) {
        PyErr_Format(PyExc_ValueError, "pieces of %zd bytes for %zd", total, into.len);
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    char *at = into.buf;
    for (Py_ssize_t i = 0; i < number; at += pieces[i++].len) copy_out(at, pieces[i].buf, pieces[i].len);
    Py_END_ALLOW_THREADS
    Py_INCREF(Py_None);
    result = Py_None;
end:
    while (held) PyBuffer_Release(&pieces[--held]);
    free(pieces);
    PyBuffer_Release(&into);
    return result;
}

static PyObject *py_wait(PyObject *self, PyObject *args) {
    Py_buffer driver, events;
    long long stream;
    int status;
    if (!PyArg_ParseTuple(args, "y*Ly*", &driver, &stream, &events)) return NULL;
    PyObject *result = NULL;
    if (driver.len != sizeof(Driver)) {
        PyErr_SetString(PyExc_ValueError, "a table of another size than chunkflow.devices.mover makes");
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    status = all(driver.buf, stream, &events);
    Py_END_ALLOW_THREADS
    result = PyLong_FromLong(status);
end:
    RELEASE(&driver, &events);
    return result;
}

static PyObject *py_feed(PyObject *self, PyObject *args) { return run(args, feed); }
static PyObject *py_drain(PyObject *self, PyObject *args) { return run(args, drain); }

static PyObject *py_finish(PyObject *self, PyObject *args) { return run(args, finish); }

/* -- Lines ----------------------------------------------------------------------------------------------------------
 *
 * A line is the job queue of the transfer threads. It has jobs, each with a part for every thread that may take some of
 * its share, and tokens for what Python does. A thread whose buffers are free serves job after job here. It goes back to
 * Python for tokens, for pieces that failed and, if times are asked for, once it has a number of them. Whoever publishes
 * a job keeps it until it is done or no thread is left: a line only refers to it.
 */
typedef struct Job {
    struct Job *next;  /* in the line */
    struct Line *line;
    PyObject *owner;   /* of the line */
    long long number;  /* which job it is; -1 for tokens */
    int64_t parts, left;  /* that nobody has taken yet; that are not done */
    uint64_t movers;      /* a bit for each thread that has moved some of it */
    Py_buffer share, pieces, copies, waits, marks;
} Job;

typedef struct Line {
    pthread_mutex_t mutex;
    pthread_cond_t more, done;
    Job *first, *last;
    int closed;
} Line;

#ifdef __APPLE__  /* where conditions wait by no other */
#define WAITS_BY CLOCK_REALTIME
#else
#define WAITS_BY CLOCK_MONOTONIC
#endif

enum { OVER, NOTHING, TOKEN, SHARE, SERVED };  /* as chunkflow/devices/job_queue.py has them */
enum { MOVERS = 64 };

static void line_free(PyObject *capsule) {
    Line *line = PyCapsule_GetPointer(capsule, "line");
    for (Job *job = line->first, *next; job; job = next) {
        next = job->next;
        free(job);  /* a token: jobs keep their line */
    }
    pthread_mutex_destroy(&line->mutex);
    pthread_cond_destroy(&line->more);
    pthread_cond_destroy(&line->done);
    free(line);
}

static PyObject *py_line(PyObject *self, PyObject *none) {
    Line *line = calloc(1, sizeof(Line));
    if (!line) return PyErr_NoMemory();
    pthread_mutex_init(&line->mutex, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
#ifndef __APPLE__
    pthread_condattr_setclock(&clock, WAITS_BY);
#endif
    pthread_cond_init(&line->more, &clock);
    pthread_cond_init(&line->done, &clock);
    pthread_condattr_destroy(&clock);
    PyObject *capsule = PyCapsule_New(line, "line", line_free);
    if (!capsule) free(line);
    return capsule;
}

static void job_end(Job *job) {
    RELEASE(&job->share, &job->pieces, &job->copies, &job->waits, &job->marks);
    Py_DECREF(job->owner);
    free(job);
}

static void job_free(PyObject *capsule) {
    Job *job = PyCapsule_GetPointer(capsule, "job");
    Line *line = job->line;
    pthread_mutex_lock(&line->mutex);
    Job **at = &line->first, *before = NULL;
    while (*at && *at != job) before = *at, at = &before->next;
    if (*at) {  /* no thread will take it any more */
        *at = job->next;
        if (line->last == job) line->last = before;
    }
    pthread_mutex_unlock(&line->mutex);
    job_end(job);
}

/* A job of a line: a share behind the events `waits`, of which each thread marks an event behind what it enqueues. */
static PyObject *py_job(PyObject *self, PyObject *args) {
    Job *job = calloc(1, sizeof(Job));
    if (!job) return PyErr_NoMemory();
    if (!PyArg_ParseTuple(args, "OLLw*y*y*y*y*", &job->owner, &job->number, &job->left, &job->share, &job->pieces,
                          &job->copies, &job->waits, &job->marks)) {
        free(job);
        return NULL;
    }
    Py_INCREF(job->owner);
    PyObject *capsule = NULL;
    job->line = PyCapsule_GetPointer(job->owner, "line");
    if (job->line && (!whole(&job->share, &job->pieces) || job->number < 0 || job->left < 0))
        PyErr_SetString(PyExc_ValueError, "tables of other sizes than chunkflow.devices.mover makes");
    else if (job->line)
        capsule = PyCapsule_New(job, "job", job_free);
    if (!capsule) job_end(job);
    return capsule;
}

static void append(Line *line, Job *job, int64_t parts) {
    pthread_mutex_lock(&line->mutex);
    job->parts = parts;
    job->next = NULL;
    if (line->first) line->last->next = job;
    else line->first = job;
    line->last = job;
    for (int64_t i = 0; i < parts; i++) pthread_cond_signal(&line->more);
    pthread_mutex_unlock(&line->mutex);
}

static PyObject *py_put(PyObject *self, PyObject *capsule) {
    Job *job = PyCapsule_GetPointer(capsule, "job");
    if (!job) return NULL;
    if (job->left) append(job->line, job, job->left);
    Py_RETURN_NONE;
}

static PyObject *py_token(PyObject *self, PyObject *capsule) {
    Line *line = PyCapsule_GetPointer(capsule, "line");
    Job *job = line ? calloc(1, sizeof(Job)) : NULL;
    if (!job) return line ? PyErr_NoMemory() : NULL;
    job->number = -1;
    append(line, job, 1);
    Py_RETURN_NONE;
}

/* Nothing follows in a line. */
static PyObject *py_over(PyObject *self, PyObject *capsule) {
    Line *line = PyCapsule_GetPointer(capsule, "line");
    if (!line) return NULL;
    pthread_mutex_lock(&line->mutex);
    line->closed = 1;
    pthread_cond_broadcast(&line->more);
    pthread_mutex_unlock(&line->mutex);
    Py_RETURN_NONE;
}

static struct timespec soon(void) {
    struct timespec until;
    clock_gettime(WAITS_BY, &until);
    until.tv_nsec += 50000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, until.tv_sec++;
    return until;
}

enum { NO_WAIT, WAIT, WAIT_A_WHILE };

/* What is next in a line: a part of it, which is then the caller's. */
static int next(Line *line, int wait, Job **found, long long *number) {
    int what = SHARE;
    struct timespec until = soon();
    pthread_mutex_lock(&line->mutex);
    while (wait && !line->first && !line->closed)
        if (wait == WAIT) pthread_cond_wait(&line->more, &line->mutex);
        else if (pthread_cond_timedwait(&line->more, &line->mutex, &until)) wait = NO_WAIT;
    Job *job = *found = line->first;
    *number = job ? job->number : -1;
    if (!job) what = line->closed ? OVER : NOTHING;
    else if (!--job->parts) {
        line->first = job->next;
        if (!job->next) line->last = NULL;
    }
    pthread_mutex_unlock(&line->mutex);
    if (job && *number < 0) {
        free(job);  /* a token has one part */
        what = TOKEN;
    }
    return what;
}

static PyObject *py_take(PyObject *self, PyObject *args) {
    PyObject *capsule;
    int wait, what;
    if (!PyArg_ParseTuple(args, "Op", &capsule, &wait)) return NULL;
    Line *line = PyCapsule_GetPointer(capsule, "line");
    if (!line) return NULL;
    Job *job;
    long long number;
    /* Whoever holds the mutex needs no lock of Python's: to keep that for a moment is better than to wait for it again. */
    what = next(line, NO_WAIT, &job, &number);
    if (wait && what == NOTHING) {
        Py_BEGIN_ALLOW_THREADS
        what = next(line, WAIT, &job, &number);
        Py_END_ALLOW_THREADS
    }
    return Py_BuildValue("iL", what, number);
}

static void end_part(Job *job) {
    Line *line = job->line;
    pthread_mutex_lock(&line->mutex);
    if (!--job->left) pthread_cond_broadcast(&line->done);
    pthread_mutex_unlock(&line->mutex);  /* from here on it may be gone */
}

/* Move shares until something else is next, or something is to be said of one: then that one's part is not ended. Times
 * are said when half of what there is room for is used, or for a while there is nothing to do.
 */
static PyObject *py_serve(PyObject *self, PyObject *args) {
    PyObject *capsule, *times, *result = NULL;
    Py_buffer driver, thread, spans = {0};
    double start;
    int index, up, wait, what;
    if (!PyArg_ParseTuple(args, "Oy*w*Odipp", &capsule, &driver, &thread, &times, &start, &index, &up, &wait))
        return NULL;
    if (times != Py_None && PyObject_GetBuffer(times, &spans, PyBUF_WRITABLE)) goto end;
    Line *line = PyCapsule_GetPointer(capsule, "line");
    if (!line) goto end;
    if (!fits(&driver, &thread) || index < 0 || index >= MOVERS) {
        PyErr_SetString(PyExc_ValueError, "tables of other sizes than chunkflow.devices.mover makes");
        goto end;
    }
    Work work = work_of(&driver, &thread, &spans, start);
    Job *job;
    long long number;
    Py_BEGIN_ALLOW_THREADS
    while ((what = next(line, !wait ? NO_WAIT : work.spanned ? WAIT_A_WHILE : WAIT, &job, &number)) == SHARE) {
        const Share *share = job->share.buf;
        if (work.spans && work.most / 2 < 2 * (share->number + work.thread->number)) break;
        if (__atomic_load_n(&share->next, __ATOMIC_RELAXED) < share->number) {
            move(&work, &job->share, &job->pieces, &job->copies, &job->waits, up ? feed : drain);
            if (!work.status && work.moved && up && index < job->marks.len / (Py_ssize_t)sizeof(int64_t))
                work.status = work.driver->record((void *)((int64_t *)job->marks.buf)[index], (void *)work.thread->stream);
            if (work.moved) __atomic_or_fetch(&job->movers, UINT64_C(1) << index, __ATOMIC_RELAXED);
            if (work.status || work.failed || work.spanned > work.most / 2) {
                what = SERVED;
                break;
            }
        }
        end_part(job);
    }
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("iLinn", what, number, work.status, work.failed, work.spanned);
end:
    RELEASE(&driver, &thread, &spans);
    return result;
}

static PyObject *py_arrive(PyObject *self, PyObject *capsule) {
    Job *job = PyCapsule_GetPointer(capsule, "job");
    if (!job) return NULL;
    end_part(job);
    Py_RETURN_NONE;
}

/* Wait until a job is done; which threads have moved some of it. Signals are handled meanwhile. */
static PyObject *py_done(PyObject *self, PyObject *args) {
    PyObject *capsule;
    int wait;
    if (!PyArg_ParseTuple(args, "Op", &capsule, &wait)) return NULL;
    Job *job = PyCapsule_GetPointer(capsule, "job");
    if (!job) return NULL;
    int64_t left;
    do {
        Py_BEGIN_ALLOW_THREADS
        struct timespec until = soon();
        pthread_mutex_lock(&job->line->mutex);
        while (wait && job->left && !pthread_cond_timedwait(&job->line->done, &job->line->mutex, &until));
        left = job->left;
        pthread_mutex_unlock(&job->line->mutex);
        Py_END_ALLOW_THREADS
        if (wait && left && PyErr_CheckSignals()) return NULL;
    } while (wait && left);
    return Py_BuildValue("LK", (long long)left, (unsigned long long)__atomic_load_n(&job->movers, __ATOMIC_RELAXED));
}

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
    int64_t live, most, limit;  /* at this moment, at once so far, and at most */
} Counter;

/* Whoever has a block resized does not say how large it was, so that is kept in front of it; in a cache line of its
 * own, for the block to be aligned as well as the handler below would have it.
 */
enum { FRONT = 64 };

/* Whether there is room for so many bytes more. Threads that ask at the same time may all be told so. */
static int has_room(Counter *c, size_t before, size_t nbytes) {
    return nbytes <= SIZE_MAX - FRONT &&
           (nbytes <= before || nbytes - before <= (size_t)c->limit - (size_t)__atomic_load_n(&c->live, __ATOMIC_RELAXED));
}

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
    return has_room(c, 0, nbytes) ? made(c, c->below.malloc(c->below.of, FRONT + nbytes), 0, nbytes) : NULL;
}

static void *count_calloc(void *of, size_t number, size_t each) {
    Counter *c = of;
    size_t nbytes;
    if (__builtin_mul_overflow(number, each, &nbytes) || !has_room(c, 0, nbytes)) return NULL;
    return made(c, c->below.calloc(c->below.of, 1, FRONT + nbytes), 0, nbytes);
}

static void *count_realloc(void *of, void *block, size_t nbytes) {
    Counter *c = of;
    if (!block) return count_malloc(of, nbytes);
    char *front = (char *)block - FRONT;
    size_t before = *(size_t *)front;
    if (!has_room(c, before, nbytes)) return NULL;
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

static PyObject *py_counted(PyObject *self, PyObject *args) {
    PyObject *fn;
    long long limit = INT64_MAX;
    if (!PyArg_ParseTuple(args, "O|L", &fn, &limit)) return NULL;
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
    *c = (Counter){handler, below->allocator, owner, 0, 0, limit};
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
    {"copy", py_copy, METH_VARARGS, "Copy rows of memory to other memory, past the caches."},
    {"join", py_join, METH_VARARGS, "Fill a buffer with others, one behind the other."},
    {"finish", py_finish, METH_VARARGS, "Wait for the uploads that feed left on their way."},
    {"line", py_line, METH_NOARGS, "A line of jobs."},
    {"job", py_job, METH_VARARGS, "A job of a line: its number and parts, and a share."},
    {"put", py_put, METH_O, "Let the threads of its line have a job."},
    {"token", py_token, METH_O, "Let a thread of a line go back to Python."},
    {"over", py_over, METH_O, "Nothing follows in a line."},
    {"take", py_take, METH_VARARGS, "What is next in a line, and the number of the job."},
    {"serve", py_serve, METH_VARARGS, "Move shares of a line until something else is next, or is to be said."},
    {"arrive", py_arrive, METH_O, "A part of a job is done."},
    {"done", py_done, METH_VARARGS, "Wait for a job; the parts that are left, and a bit for each thread that moved some."},
    {"wait", py_wait, METH_VARARGS, "Let a stream wait for events."},
    {"counted", py_counted, METH_VARARGS,
     "Call a function; its result and the most bytes that NumPy had allocated at once: a limit is no more given."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_transfer", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__transfer(void) { return PyModule_Create(&module); }
