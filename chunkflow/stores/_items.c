/* Encoded chunks, read from files and seen from outside: the items in each that a decoder on a device can be given.
 *
 * A decoder there is fast because it believes what it is given, and nobody can stop it. So all that can be seen without
 * decoding is checked here, on the bytes as they are uploaded: that they hold as much as they should, and no more, and
 * are whole. What is in any other way than usual is nobody's here: the host's decoders know it, or what is wrong.
 *
 * Several chunks are one call, without Python's lock, for which a dozen threads would wait between any two.
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
#include <unistd.h>

enum { ZSTD, LZ4, BLOSC_LZ4, BLOSC_ZSTD, GZIP };  /* chunkflow/stores/zarrencoded.py */
enum { PLAIN, BYTES, BITS };                      /* chunkflow/packed.py */
enum { GIVEN = 4, ROWS = 7, FACTS = 5 };          /* chunkflow/batches.py, chunkflow/packed.py */

/* Rows of n numbers: where items begin, their bytes, and how many these decode to; and how they lie in the chunk. */
typedef struct {
    int64_t *items, n, side;
    int number, width, shuffled;
} Found;

static uint32_t word(const uint8_t *at) {
    return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Whether there is one zstd frame, of so many bytes decoded, and nothing behind it (RFC 8878, section 3.1.1). */
static int frame(const uint8_t *at, const uint8_t *end, int64_t nbytes) {
    enum { UNUSUAL = 15, BLOCK = 128 << 10, RAW = 0, REPEATED = 1, RESERVED = 3 };
    if (end - at < 6 || word(at) != 0xFD2FB528) return 0;
    int flags = at[4], single = flags >> 5 & 1, width = flags >> 6 ? 1 << (flags >> 6) : single;
    if (flags & UNUSUAL) return 0;  /* a checksum, a dictionary, or what nobody uses */
    at += 6 - single;
    if (!width || end - at < width) return 0;
    uint64_t claimed = width == 2 ? 256 : 0;
    for (int i = 0; i < width; i++) claimed += (uint64_t)at[i] << 8 * i;
    if (claimed != (uint64_t)nbytes) return 0;
    for (at += width; end - at >= 3;) {
        uint32_t header = at[0] | at[1] << 8 | at[2] << 16;
        int kind = header >> 1 & 3, length = header >> 3, stored = kind == REPEATED ? 1 : length;
        at += 3;
        if (kind == RESERVED || length > BLOCK || end - at < stored) return 0;
        at += stored;
        if (kind == RAW || kind == REPEATED) nbytes -= length;
        if (nbytes < 0) return 0;
        if (header & 1) return at == end;
    }
    return 0;
}

/* Whether this is a gzip file with nothing in its header, which says that it holds so much (RFC 1952). */
static int member(const uint8_t *at, int64_t size, int64_t nbytes) {
    return size > 18 && word(at) == 0x00088B1F && word(at + size - 4) == (uint32_t)nbytes;
}

static int single(Found *found, int64_t start, int64_t size, int64_t nbytes) {
    if (!(found->items = malloc(3 * sizeof(int64_t)))) return 0;
    found->items[0] = start, found->items[1] = size - start, found->items[2] = nbytes;
    found->n = found->number = found->width = 1, found->side = nbytes, found->shuffled = PLAIN;
    return 1;
}

/* C-Blosc's format 2 (its README_CHUNK_FORMAT): a header, where each block begins, and each block's items, behind their
 * lengths. A block has an item for each byte of its elements, or one for all of them. An item that has as many bytes as
 * it decodes to is stored as it is.
 */
static int blosc(Found *found, const uint8_t *raw, int64_t size, int64_t nbytes, int inner, int64_t most) {
    enum { SHUFFLED = 1, STORED = 2, SHUFFLED_BITS = 4, RESERVED = 8, WHOLE = 16 };
    enum { HEADER = 16, MOST_ITEMS = 16, LEAST_ITEM = 128 };
    if (size < HEADER) return 0;
    int flags = raw[2], width = raw[3];
    int64_t side = word(raw + 8);
    if (raw[0] != 2 || word(raw + 4) != nbytes || word(raw + 12) != size || !width) return 0;
    if (flags & RESERVED || !side || side > nbytes) return 0;  /* C-Blosc refuses these, too */
    if (flags & STORED) return size == HEADER + nbytes && single(found, HEADER, size, nbytes);
    /* Four bytes are put together at a time, which must be of one block. */
    if (raw[1] != 1 || flags >> 5 != (inner == BLOSC_LZ4 ? 1 : 4) || (side % 4 && side < nbytes)) return 0;
    int64_t last = nbytes % side, blocks = nbytes / side + (last > 0), first = HEADER + 4 * blocks;
    int number = !(flags & WHOLE) && width <= MOST_ITEMS && side / width >= LEAST_ITEM ? width : 1;
    int64_t n = (blocks - (last > 0)) * number + (last > 0);
    /* A block's items are of equal size, and each of its bytes is in one; each has a length, and a byte at least. */
    if (side % number || n > most || first + 5 * n > size) return 0;
    int64_t *items = malloc(3 * n * sizeof(int64_t)), at = 0;
    if (!items) return 0;
    for (int64_t i = 0, block = -1, left = 0; i < n; i++, left--) {
        if (!left) {
            at = word(raw + HEADER + 4 * ++block);
            left = last && block == blocks - 1 ? 1 : number;
        }
        int64_t decoded = last && block == blocks - 1 ? last : side / number;
        if (at < first || at > size - 4) goto other;
        int64_t length = word(raw + at);
        at += 4;
        if (!length || length > decoded || length > size - at) goto other;
        if (inner == BLOSC_ZSTD && length < decoded && !frame(raw + at, raw + at + length, decoded)) goto other;
        items[i] = at, items[n + i] = length, items[2 * n + i] = decoded;
        at += length;
    }
    int shuffled = flags & SHUFFLED && width > 1 ? BYTES : flags & SHUFFLED_BITS ? BITS : PLAIN;
    *found = (Found){items, n, side, number, width, shuffled};
    return 1;
other:
    free(items);
    return 0;
}

static int look(Found *found, const uint8_t *raw, int64_t size, int64_t nbytes, int codec, int64_t most) {
    switch (codec) {
    case ZSTD: return frame(raw, raw + size, nbytes) && single(found, 0, size, nbytes);
    case LZ4: return size > 4 && word(raw) == nbytes && single(found, 4, size, nbytes);  /* as numcodecs has it */
    case GZIP: return member(raw, size, nbytes) && single(found, 0, size, nbytes);
    case BLOSC_LZ4:
    case BLOSC_ZSTD: return blosc(found, raw, size, nbytes, codec, most);
    }
    return 0;
}

/* What a file is known by, as `stamped` of chunkflow/stores/zarrfiles.py has it; a size of -1 where any file will do. */
typedef struct {
    unsigned long long inode, modified;
    long long size;
} Stamp;

static Stamp stamp(const struct stat *state) {
#ifdef __APPLE__
    struct timespec at = state->st_mtimespec;
#else
    struct timespec at = state->st_mtim;
#endif
    return (Stamp){state->st_ino, (unsigned long long)at.tv_sec * 1000000000 + at.tv_nsec, state->st_size};
}

/* Read a part of a file, all of it if `length` is negative; its bytes, or -1 if there are more than there is room for,
 * or this is not the file that was `meant`.
 */
static int64_t part(const char *path, int64_t start, int64_t length, const Stamp *meant, uint8_t *out, int64_t room) {
    int fd;
    struct stat state;
    do fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return -1;
    if (length < 0 || meant->size >= 0) {
        Stamp now = {0};
        int unknown = fstat(fd, &state);
        if (!unknown) now = stamp(&state);
        if (length < 0) length = now.size;
        if (unknown || (meant->size >= 0 && memcmp(&now, meant, sizeof now))) length = -1;
    }
    if (length > room) length = -1;
    for (int64_t done = 0; done < length;) {
        ssize_t n = pread(fd, out + done, length - done, start + done);
        if (n > 0) done += n;
        else if (n == 0 || errno != EINTR) length = -1;
    }
    close(fd);
    return length;
}

typedef struct {
    PyObject *path;  /* NULL for none */
    int64_t start, length, at;
    Stamp file;
    Found found;
} Chunk;

static int asked(Chunk *chunk, PyObject *place) {
    if (!place) return 0;
    if (place == Py_None) return 1;
    long long start, length;
    Stamp *f = &chunk->file;
    f->size = -1;
    if (!PyArg_ParseTuple(place, "O&LL|(KKL)", PyUnicode_FSConverter, &chunk->path, &start, &length, &f->inode,
                          &f->modified, &f->size))
        return 0;
    chunk->start = start, chunk->length = length;
    return 1;
}

static PyObject *told(const Chunk *chunk) {
    const Found *f = &chunk->found;
    if (!f->items) return Py_NewRef(Py_None);
    PyObject *items = PyBytes_FromStringAndSize((const char *)f->items, 3 * f->n * sizeof(int64_t));
    if (!items) return NULL;
    long long at = chunk->at, size = chunk->length, side = f->side;
    return Py_BuildValue("LLNLiii", at, size, items, side, f->number, f->width, f->shuffled);
}

static PyObject *py_fetch(PyObject *self, PyObject *args) {
    PyObject *places, *result = NULL;
    Py_buffer out;
    long long room, nbytes, most, alignment;
    int codec;
    if (!PyArg_ParseTuple(args, "O!w*LLLiL", &PyList_Type, &places, &out, &room, &alignment, &nbytes, &codec, &most))
        return NULL;
    Py_ssize_t number = PyList_Size(places), n = 0;
    Chunk *chunks = calloc(number + 1, sizeof(Chunk));
    if (!chunks) PyErr_NoMemory();
    while (chunks && n < number && asked(&chunks[n], PyList_GetItem(places, n))) n++;
    if (chunks && n == number && alignment > 0) {
        Py_BEGIN_ALLOW_THREADS
        int64_t at = 0;
        for (n = 0; n < number; n++) {
            Chunk *c = &chunks[n];
            uint8_t *here = (uint8_t *)out.buf + at;
            if (!c->path || room < 0 || at > out.len - room) continue;
            c->length = part(PyBytes_AsString(c->path), c->start, c->length, &c->file, here, room);
            if (c->length < 0 || !look(&c->found, here, c->length, nbytes, codec, most)) continue;
            c->at = at;
            at += (c->length + alignment - 1) / alignment * alignment;
        }
        Py_END_ALLOW_THREADS
        result = PyList_New(number);
        for (n = 0; result && n < number; n++) {
            PyObject *one = told(&chunks[n]);
            if (!one || PyList_SetItem(result, n, one)) Py_CLEAR(result);
        }
    }
    for (n = 0; chunks && n < number; n++) {
        Py_XDECREF(chunks[n].path);
        free(chunks[n].found.items);
    }
    free(chunks);
    PyBuffer_Release(&out);
    if (!result && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "an alignment is positive");
    return result;
}

/* A chunk of a batch: where it begins, its items, and its layout. Of one that comes decoded there are no items. */
typedef struct {
    const int64_t *items;
    Py_ssize_t n;
    long long start, layout[FACTS - 1];
} Member;

static int is_member(Member *chunk, PyObject *known, int64_t nbytes) {
    const char *items = NULL;
    Py_ssize_t size = 3 * sizeof(int64_t);
    long long *to = chunk->layout;
    to[0] = nbytes, to[1] = to[2] = 1, to[3] = PLAIN;
    if (known != Py_None
        && !PyArg_ParseTuple(known, "Ly#LLLL", &chunk->start, &items, &size, to, to + 1, to + 2, to + 3))
        return 0;
    chunk->items = (const int64_t *)items;
    chunk->n = size / (3 * sizeof(int64_t));
    return 1;
}

/* Fill a batch's table: rows of what a decoder must know of each item, and of what it fills in. Where chunks are put
 * together of their items, which may be stored as they are, it has behind these where each item lies once all are
 * decoded, and the chunks' layouts.
 *
 * NumPy gives the lock away for each of a dozen steps, and the run waits for it among those who read as often. This is
 * over in less time than to give it away once takes.
 */
static PyObject *py_tabulate(PyObject *self, PyObject *args) {
    PyObject *known, *result = NULL, *sizes = NULL, *ends = NULL;
    Py_buffer out;
    unsigned long long source, target;
    long long nbytes;
    int together;
    if (!PyArg_ParseTuple(args, "O!w*KKLp", &PyList_Type, &known, &out, &source, &target, &nbytes, &together))
        return NULL;
    Py_ssize_t chunks = PyList_Size(known), i = 0, n = 0, total = 0, number = 0;
    Member *members = calloc(chunks + 1, sizeof(Member));
    if (!members) PyErr_NoMemory();
    for (; members && i < chunks && is_member(&members[i], PyList_GetItem(known, i), nbytes); i++) {
        Member *c = &members[i];
        total += c->n;
        for (n = 0; c->items && n < c->n; n++) number += !together || c->items[c->n + n] != c->items[2 * c->n + n];
    }
    if (!members || i < chunks) goto done;
    int64_t words = ROWS * number + (together ? total + FACTS * chunks : 0);
    if ((int64_t)(out.len / sizeof(uint64_t)) < words) {
        PyErr_SetString(PyExc_ValueError, "a batch has more items than there is room for in its table");
        goto done;
    }
    sizes = PyBytes_FromStringAndSize(NULL, number * sizeof(int64_t));
    ends = PyBytes_FromStringAndSize(NULL, chunks * sizeof(int64_t));
    if (!sizes || !ends) goto done;
    uint64_t *row = out.buf, *where = row + ROWS * number, *fact = where + total, first = 0;
    memset(row + GIVEN * number, 0xFF, (ROWS - GIVEN) * number * sizeof(uint64_t));  /* no success, so far */
    for (i = 0; i < chunks; first += members[i++].n) {
        const Member *c = &members[i];
        for (n = 0; n < c->n; n++) {
            int64_t length = c->items ? c->items[c->n + n] : nbytes, size = c->items ? c->items[2 * c->n + n] : nbytes;
            int coded = c->items && (!together || length != size);
            /* Of one that comes decoded, whatever is there is of no matter. */
            uint64_t from = c->items ? source + c->start + c->items[n] : target;
            if (coded) row[0] = from, row[number] = length, row[2 * number] = size, row[3 * number] = target, row++;
            if (together) *where++ = coded ? target : from;
            target += size;
        }
        ((int64_t *)PyBytes_AsString(ends))[i] = row - (uint64_t *)out.buf;
        if (together) {
            *fact++ = first;
            for (n = 0; n < FACTS - 1; n++) *fact++ = c->layout[n];
        }
    }
    memcpy(PyBytes_AsString(sizes), (uint64_t *)out.buf + 2 * number, number * sizeof(int64_t));
    result = Py_BuildValue("nnOO", number, total, sizes, ends);
done:
    Py_XDECREF(sizes);
    Py_XDECREF(ends);
    free(members);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef methods[] = {
    {"tabulate", py_tabulate, METH_VARARGS, "Fill a batch's table; items to decode, all items, sizes, chunks' ends."},
    {"fetch", py_fetch, METH_VARARGS, "Read chunks into a buffer; of each, where it lies and what is in it, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_items", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__items(void) { return PyModule_Create(&module); }
