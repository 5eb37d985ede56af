/* What lies in an encoded chunk, seen from outside: the items that a decoder on a device can be given, each by itself.
 *
 * A decoder there is fast because it believes what it is given, and nobody can stop it. So all that can be seen without
 * decoding is checked here, on the bytes as they are uploaded: that they hold as much as they should, and no more, and
 * are whole. What is in any other way than usual is nobody's here: the host's decoders know it, or what is wrong.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

enum { ZSTD, LZ4, BLOSC_LZ4, BLOSC_ZSTD };  /* chunkflow/stores/zarrencoded.py */
enum { PLAIN, BYTES, BITS };                /* chunkflow/packed.py */

static uint32_t word(const uint8_t *at) {
    return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Whether there is one zstd frame, of so many bytes decoded, and nothing behind it (RFC 8878, section 3.1.1). */
static int frame(const uint8_t *at, const uint8_t *end, int64_t nbytes) {
    enum { MAGIC = 0xFD2FB528, UNUSUAL = 15, BLOCK = 128 << 10, RAW = 0, REPEATED = 1, RESERVED = 3 };
    if (end - at < 6 || word(at) != MAGIC) return 0;
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

/* Columns of n numbers: where items begin, their bytes, and how many these decode to. */
static PyObject *table(int64_t n, int64_t **items) {
    PyObject *made = PyBytes_FromStringAndSize(NULL, 3 * 8 * n);
    if (made) *items = (int64_t *)PyBytes_AsString(made);
    return made;
}

static PyObject *single(int64_t start, int64_t size, int64_t nbytes) {
    int64_t *items;
    PyObject *made = table(1, &items);
    if (!made) return NULL;
    items[0] = start, items[1] = size - start, items[2] = nbytes;
    return Py_BuildValue("NLiii", made, (long long)nbytes, 1, 1, PLAIN);
}

/* C-Blosc's format 2 (its README_CHUNK_FORMAT): a header, where each block begins, and each block's items, behind their
 * lengths. A block has an item for each byte of its elements, or one for all of them. An item that has as many bytes as
 * it decodes to is stored as it is.
 */
static PyObject *blosc(const uint8_t *raw, int64_t size, int64_t nbytes, int inner) {
    enum { SHUFFLED = 1, STORED = 2, SHUFFLED_BITS = 4, RESERVED = 8, WHOLE = 16 };
    enum { HEADER = 16, MOST_ITEMS = 16, LEAST_ITEM = 128 };
    if (size < HEADER) Py_RETURN_NONE;
    int flags = raw[2], width = raw[3];
    int64_t side = word(raw + 8);
    if (raw[0] != 2 || word(raw + 4) != nbytes || word(raw + 12) != size || !width) Py_RETURN_NONE;
    if (flags & RESERVED || !side || side > nbytes) Py_RETURN_NONE;  /* C-Blosc refuses these, too */
    if (flags & STORED) {
        if (size != HEADER + nbytes) Py_RETURN_NONE;
        return single(HEADER, size, nbytes);
    }
    /* Four bytes are put together at a time, which must be of one block. */
    if (raw[1] != 1 || flags >> 5 != (inner == BLOSC_LZ4 ? 1 : 4) || (side % 4 && side < nbytes)) Py_RETURN_NONE;
    int64_t last = nbytes % side, blocks = nbytes / side + (last > 0), first = HEADER + 4 * blocks;
    int number = !(flags & WHOLE) && width <= MOST_ITEMS && side / width >= LEAST_ITEM ? width : 1;
    int64_t n = (blocks - (last > 0)) * number + (last > 0);
    /* A block's items are of equal size, and each of its bytes is in one; each has a length, and a byte at least. */
    if (side % number || first + 5 * n > size) Py_RETURN_NONE;
    int64_t *items, at = 0;
    PyObject *made = table(n, &items);
    if (!made) return NULL;
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
    return Py_BuildValue("NLiii", made, (long long)side, number, width, shuffled);
other:
    Py_DECREF(made);
    Py_RETURN_NONE;
}

static PyObject *py_items(PyObject *self, PyObject *args) {
    Py_buffer raw;
    long long nbytes;
    int codec;
    if (!PyArg_ParseTuple(args, "y*Li", &raw, &nbytes, &codec)) return NULL;
    const uint8_t *at = raw.buf;
    PyObject *result;
    if (codec == BLOSC_LZ4 || codec == BLOSC_ZSTD) result = blosc(at, raw.len, nbytes, codec);
    else if (codec == ZSTD && frame(at, at + raw.len, nbytes)) result = single(0, raw.len, nbytes);
    else if (codec == LZ4 && raw.len > 4 && word(at) == nbytes) result = single(4, raw.len, nbytes);  /* numcodecs' */
    else result = Py_NewRef(Py_None);
    PyBuffer_Release(&raw);
    return result;
}

static PyMethodDef methods[] = {
    {"items", py_items, METH_VARARGS, "Items of a chunk, and their layout; None if it is not as usual."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_items", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__items(void) { return PyModule_Create(&module); }
