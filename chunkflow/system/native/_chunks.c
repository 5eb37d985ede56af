/* Encoded chunks, read from files and seen from outside: the items in each that a decoder on a device can be given.
 *
 * A decoder there is fast because it believes what it is given, and nobody can stop it. So all that can be seen without
 * decoding is checked here, on the bytes as they are uploaded: that they hold as much as they should, and no more, and
 * are whole. What is in any other way than usual is nobody's here: the host's decoders know it, or what is wrong.
 *
 * All of a block's chunks are known here from the time when their files are named until they are put into the table of
 * their batch. Threads fetch some each, without Python's lock: those of chunkflow/system/native/_transfer.c, which are given an
 * address, or whoever calls.
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

enum { ZSTD, LZ4, BLOSC_LZ4, BLOSC_ZSTD, GZIP };  /* chunkflow/core/encoded_chunks.py, as the next two lines */
enum { PLAIN, BYTES, BITS };
enum { ALIGNMENT = 16, FACTS = 5 };
enum { GIVEN = 4, ROWS = 7 };  /* chunkflow/planner/decode_batch.py */

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

/* CRC-32C (RFC 3720, appendix B.4), as it is kept between bytes: reversed, with all bits of the first and last value
 * turned. Processors with an instruction for it take three runs of bytes at a time, whose values are then put together.
 */
enum { RUN = 1024, POLYNOMIAL = 0x82F63B78u };
static uint32_t crc_table[8][256], crc_shift[4][256];  /* of a byte so many places on; of a byte behind RUN zeros */

#if defined(__x86_64__) && defined(__GNUC__)
#include <nmmintrin.h>
#define CRC_TARGET __attribute__((target("sse4.2")))
#define CRC_WORD(crc, at) (uint32_t)_mm_crc32_u64(crc, at)
static int crc_fast(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#define CRC_TARGET
#define CRC_WORD(crc, at) __crc32cd(crc, at)
static int crc_fast(void) { return 1; }
#endif

static void crc_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        crc_table[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int i = 0; i < 256; i++)
            crc_table[k][i] = crc_table[k - 1][i] >> 8 ^ crc_table[0][crc_table[k - 1][i] & 255];
    uint32_t bits[32];  /* the value is a sum of bits, and so is what becomes of it */
    for (int bit = 0; bit < 32; bit++) {
        bits[bit] = (uint32_t)1 << bit;
        for (unsigned i = 0; i < RUN; i++) bits[bit] = bits[bit] >> 8 ^ crc_table[0][bits[bit] & 255];
    }
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < 256; i++)
            for (int bit = 0; bit < 8; bit++) crc_shift[k][i] ^= i >> bit & 1 ? bits[8 * k + bit] : 0;
}

#ifdef CRC_TARGET
static uint64_t eight(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static uint32_t crc_shifted(uint32_t crc) {
    return crc_shift[0][crc & 255] ^ crc_shift[1][crc >> 8 & 255] ^ crc_shift[2][crc >> 16 & 255] ^
           crc_shift[3][crc >> 24];
}

CRC_TARGET static uint32_t crc_by_words(uint32_t crc, const uint8_t **at, int64_t *size) {
    for (; *size >= 3 * RUN; *at += 3 * RUN, *size -= 3 * RUN) {
        uint32_t second = 0, third = 0;
        for (const uint8_t *p = *at, *end = p + RUN; p < end; p += 8) {
            crc = CRC_WORD(crc, eight(p));
            second = CRC_WORD(second, eight(p + RUN));
            third = CRC_WORD(third, eight(p + 2 * RUN));
        }
        crc = crc_shifted(crc_shifted(crc) ^ second) ^ third;
    }
    for (; *size >= 8; *at += 8, *size -= 8) crc = CRC_WORD(crc, eight(*at));
    return crc;
}
#endif

/* Eight bytes at a time by tables, whatever the machine's order of bytes. */
static uint32_t crc_by_tables(uint32_t crc, const uint8_t **at, int64_t *size) {
    for (; *size >= 8; *at += 8, *size -= 8) {
        uint32_t low = crc ^ word(*at), high = word(*at + 4);
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^ crc_table[5][low >> 16 & 255] ^
              crc_table[4][low >> 24] ^ crc_table[3][high & 255] ^ crc_table[2][high >> 8 & 255] ^
              crc_table[1][high >> 16 & 255] ^ crc_table[0][high >> 24];
    }
    return crc;
}

static uint32_t crc32c(const uint8_t *at, int64_t size, int fast) {
    uint32_t crc = 0xFFFFFFFFu;
#ifdef CRC_TARGET
    if (fast && crc_fast()) crc = crc_by_words(crc, &at, &size);
#else
    (void)fast;  /* there is no other way on this processor */
#endif
    crc = crc_by_tables(crc, &at, &size);
    for (; size; at++, size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *at) & 255];
    return ~crc;
}

/* The checksum of a buffer, without Python's lock; by the processor's own instruction if it has one and that is wanted. */
static PyObject *py_crc32c(PyObject *self, PyObject *args) {
    Py_buffer from;
    int fast = 1;
    if (!PyArg_ParseTuple(args, "y*|p", &from, &fast)) return NULL;
    uint32_t crc;
    Py_BEGIN_ALLOW_THREADS
    crc = crc32c(from.buf, from.len, fast);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&from);
    return PyLong_FromUnsignedLong(crc);
}

/* What a file is known by, as `stamped` of chunkflow/stores/kvstore/folder.py has it; a size of -1 where any file will do. */
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

/* Whether a file was changed after a time, in nanoseconds; no file after 0. */
static int changed(const struct stat *found, int64_t since) {
#ifdef __APPLE__
    struct timespec at = found->st_ctimespec;
#else
    struct timespec at = found->st_ctim;
#endif
    return since && (int64_t)at.tv_sec * 1000000000 + at.tv_nsec > since;
}

/* Read a part of a file, all of it if `length` is negative; its bytes, or -1 if there are more than there is room for,
 * or this is not the file that was `meant`, or it was changed after the time `since`, in nanoseconds (0: whenever it was).
 */
static int64_t part(const char *path, int64_t start, int64_t length, const Stamp *meant, int64_t since, uint8_t *out,
                    int64_t room) {
    int fd;
    struct stat state;
    do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);  /* a pipe would be waited for */
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return -1;
    if (length < 0 || meant->size >= 0 || since) {
        Stamp now = {0};
        int unknown = fstat(fd, &state);
        if (!unknown) now = stamp(&state);
        if (length < 0) length = now.size;
        if (unknown || (meant->size >= 0 && memcmp(&now, meant, sizeof now)) || changed(&state, since)) length = -1;
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

/* A chunk: what is asked for, and what was found, of which there are no items if the host is to read it. */
typedef struct {
    PyObject *path;  /* NULL for none */
    int64_t start, length;
    Stamp file;
    int64_t at, size, checksum;  /* where it lies in the buffer; its bytes; of what its only item decodes to, or -1 */
    Found found;
} Chunk;

/* A block's chunks, which decode to `nbytes` each. In the buffer there are `room` bytes for each. No file is
 * read that was changed after `since`. If they are
 * `checked`, their CRC-32C lies behind each. */
typedef struct {
    int64_t number, nbytes, most, room, since;
    int codec, checked;
    Chunk chunks[];
} Chunks;

static Chunks *chunks_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, "chunks"); }

static void chunks_free(PyObject *capsule) {
    Chunks *all = chunks_of(capsule);
    for (Chunk *c = all->chunks, *end = c + all->number; c < end; c++) {
        Py_XDECREF(c->path);
        free(c->found.items);
    }
    free(all);
}

static int place(Chunk *chunk, PyObject *where) {
    if (where == Py_None) return 1;
    if (!PyTuple_Check(where)) {
        PyErr_SetString(PyExc_TypeError, "a place is a tuple");
        return 0;
    }
    long long start, length;
    Stamp *f = &chunk->file;
    f->size = -1;
    if (!PyArg_ParseTuple(where, "O&LL|(KKL)", PyUnicode_FSConverter, &chunk->path, &start, &length, &f->inode,
                          &f->modified, &f->size))
        return 0;
    chunk->start = start, chunk->length = length;
    return 1;
}

static PyObject *py_chunks(PyObject *self, PyObject *args) {
    PyObject *places;
    long long nbytes, most, room, since = 0;
    int codec, checked = 0;
    if (!PyArg_ParseTuple(args, "O!iLLL|Lp", &PyList_Type, &places, &codec, &nbytes, &most, &room, &since, &checked))
        return NULL;
    if (nbytes < 0 || room < ALIGNMENT || room % ALIGNMENT) {
        PyErr_Format(PyExc_ValueError, "there is no room for a chunk in %lld bytes", room);
        return NULL;
    }
    Py_ssize_t number = PyList_Size(places);
    Chunks *all = calloc(1, sizeof(Chunks) + number * sizeof(Chunk));
    if (!all) return PyErr_NoMemory();
    all->number = number, all->codec = codec, all->nbytes = nbytes, all->most = most, all->room = room;
    all->since = since, all->checked = checked;
    PyObject *capsule = PyCapsule_New(all, "chunks", chunks_free);
    if (!capsule) free(all);
    for (Py_ssize_t i = 0; capsule && i < number; i++)
        if (!place(&all->chunks[i], PyList_GetItem(places, i))) Py_CLEAR(capsule);
    return capsule;
}

/* Whether there are so many chunks. */
static int within(const Chunks *all, long long first, long long number) {
    if (all && first >= 0 && number >= 0 && first <= all->number - number) return 1;
    if (all) PyErr_Format(PyExc_IndexError, "there are not %lld chunks from %lld on", number, first);
    return 0;
}

/* Read chunks into memory, one behind the other, which goes to the first one's place in the buffer. Bytes that they
 * take, or -1 if some of them are the host's to read.
 */
static int64_t fetch(void *of, int64_t first, int64_t number, uint8_t *out, int64_t space) {
    Chunks *all = of;
    int64_t at = 0, end = 0, missed = 0;
    if (number > all->number - first) number = all->number - first;
    for (Chunk *c = all->chunks + first, *last = c + number; c < last; c++) {
        free(c->found.items);
        c->found.items = NULL, c->checksum = -1;
        c->size = c->path && at <= space - all->room
                      ? part(PyBytes_AsString(c->path), c->start, c->length, &c->file, all->since, out + at, all->room)
                      : -1;
        if (all->checked && c->size >= 0) {  /* the last 4 bytes are the checksum of those before */
            c->size -= 4;
            if (c->size >= 0 && crc32c(out + at, c->size, 1) != word(out + at + c->size)) c->size = -1;
        }
        if (c->size < 0 || !look(&c->found, out + at, c->size, all->nbytes, all->codec, all->most)) {
            missed++;
            continue;
        }
        if (all->codec == GZIP) c->checksum = word(out + at + c->size - 8);
        c->at = first * all->room + at;
        end = at + c->size;
        at += (c->size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return missed ? -1 : end;
}

static PyObject *py_fetch(PyObject *self, PyObject *args) {
    PyObject *capsule;
    Py_buffer out;
    long long first, number;
    if (!PyArg_ParseTuple(args, "OLLw*", &capsule, &first, &number, &out)) return NULL;
    Chunks *all = chunks_of(capsule);
    int fits = within(all, first, number);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        fetch(all, first, number, out.buf, out.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&out);
    return fits ? Py_NewRef(Py_None) : NULL;
}

/* What became of chunks that were fetched: the bytes that they take in the buffer, and which are the host's. */
static PyObject *py_missed(PyObject *self, PyObject *args) {
    PyObject *capsule;
    long long first, number;
    if (!PyArg_ParseTuple(args, "OLL", &capsule, &first, &number)) return NULL;
    Chunks *all = chunks_of(capsule);
    if (!within(all, first, number)) return NULL;
    PyObject *missed = PyList_New(0);
    long long end = 0;
    for (long long i = first; missed && i < first + number; i++) {
        const Chunk *c = &all->chunks[i];
        if (c->found.items) {
            end = c->at + c->size - first * all->room;
            continue;
        }
        PyObject *one = PyLong_FromLongLong(i);
        if (!one || PyList_Append(missed, one)) Py_CLEAR(missed);
        Py_XDECREF(one);
    }
    return missed ? Py_BuildValue("LN", end, missed) : NULL;
}

/* Addresses of chunks and of `fetch`, for the loops of chunkflow/system/native/_transfer.c. */
static PyObject *py_address(PyObject *self, PyObject *capsule) {
    Chunks *all = chunks_of(capsule);
    return all ? Py_BuildValue("LL", (long long)(intptr_t)all, (long long)(intptr_t)fetch) : NULL;
}

static PyObject *numbers(int64_t number) { return PyBytes_FromStringAndSize(NULL, number * sizeof(int64_t)); }

/* Fill a batch's table: rows of what a decoder must know of each item, and of what it fills in. Where chunks are put
 * together of their items, which may be stored as they are, it has behind these where each item lies once all are
 * decoded, and the chunks' layouts.
 *
 * NumPy gives the lock away for each of a dozen steps, and the run waits for it among those who read as often. This is
 * over in less time than to give it away once takes.
 */
static PyObject *py_tabulate(PyObject *self, PyObject *args) {
    PyObject *capsule, *result = NULL, *sizes = NULL, *sums = NULL, *ends = NULL;
    Py_buffer out;
    unsigned long long source, target;
    int together;
    if (!PyArg_ParseTuple(args, "Ow*KKp", &capsule, &out, &source, &target, &together)) return NULL;
    const Chunks *all = chunks_of(capsule);
    if (!all) goto done;
    const Chunk *c, *last = all->chunks + all->number;
    int64_t number = 0, total = 0, n;
    for (c = all->chunks; c < last; c++) {
        const Found *f = &c->found;
        total += f->items ? f->n : 1;
        for (n = 0; f->items && n < f->n; n++) number += !together || f->items[f->n + n] != f->items[2 * f->n + n];
    }
    int64_t words = ROWS * number + (together ? total + FACTS * all->number : 0);
    if ((int64_t)(out.len / sizeof(uint64_t)) < words) {
        PyErr_SetString(PyExc_ValueError, "a batch has more items than there is room for in its table");
        goto done;
    }
    sizes = numbers(number), sums = numbers(number), ends = numbers(all->number);
    if (!sizes || !sums || !ends) goto done;
    uint64_t *row = out.buf, *where = row + ROWS * number, *fact = where + total, first = 0;
    int64_t *sum = (int64_t *)PyBytes_AsString(sums), *end = (int64_t *)PyBytes_AsString(ends);
    memset(row + GIVEN * number, 0xFF, (ROWS - GIVEN) * number * sizeof(uint64_t));  /* no success, so far */
    for (c = all->chunks; c < last; c++) {
        /* Of one that comes decoded, whatever is there is of no matter. */
        static const Found decoded = {.n = 1, .number = 1, .width = 1, .shuffled = PLAIN};
        const Found *f = c->found.items ? &c->found : &decoded;
        for (n = 0; n < f->n; n++) {
            int64_t length = f->items ? f->items[f->n + n] : all->nbytes;
            int64_t size = f->items ? f->items[2 * f->n + n] : all->nbytes;
            int coded = f->items && (!together || length != size);
            uint64_t from = f->items ? source + c->at + f->items[n] : target;
            if (coded) {
                row[0] = from, row[number] = length, row[2 * number] = size, row[3 * number] = target, row++;
                *sum++ = c->checksum;
            }
            if (together) *where++ = coded ? target : from;
            target += size;
        }
        *end++ = row - (uint64_t *)out.buf;
        if (together) {
            int64_t facts[FACTS] = {first, f->items ? f->side : all->nbytes, f->number, f->width, f->shuffled};
            memcpy(fact, facts, sizeof facts);
            fact += FACTS;
        }
        first += f->n;
    }
    memcpy(PyBytes_AsString(sizes), (uint64_t *)out.buf + 2 * number, number * sizeof(int64_t));
    result = Py_BuildValue("LLOOO", (long long)number, (long long)total, sizes, sums, ends);
done:
    Py_XDECREF(sizes);
    Py_XDECREF(sums);
    Py_XDECREF(ends);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef methods[] = {
    {"chunks", py_chunks, METH_VARARGS, "Chunks of a block, by their places, to be fetched and put into a table."},
    {"fetch", py_fetch, METH_VARARGS, "Read chunks into memory, one behind the other, and find their items."},
    {"missed", py_missed, METH_VARARGS, "Bytes of chunks that were fetched, and which are left to the host."},
    {"crc32c", py_crc32c, METH_VARARGS, "CRC-32C of a buffer."},
    {"address", py_address, METH_O, "Addresses of chunks and of the function that fetches them."},
    {"tabulate", py_tabulate, METH_VARARGS,
     "Fill a batch's table; items to decode, all items, their sizes and checksums, chunks' ends."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_chunks", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__chunks(void) {
    crc_prepare();
    return PyModule_Create(&module);
}
