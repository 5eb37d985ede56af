/* Counts without Python's lock, which NumPy's own keep: of integers, and of numbers in bins.
 *
 * Few counts are held four times, so that numbers of one bin that follow one another need not wait for each other.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { TIMES = 4, FEW = 1 << 12 };

/* How often integers below `number` come; there are no others. */
#define COUNT(T)                                                                                                       \
    static void count_##T(const void *from, int64_t n, int64_t *part, int64_t number, int64_t step) {                  \
        const T *x = from;                                                                                             \
        for (int64_t i = 0; i < n; i++)                                                                                \
            if ((uint64_t)x[i] < (uint64_t)number) part[x[i] + (i % TIMES) * step]++;                                  \
    }

COUNT(uint8_t)
COUNT(uint16_t)
COUNT(uint32_t)
COUNT(uint64_t)
COUNT(int64_t)

typedef void (*Count)(const void *, int64_t, int64_t *, int64_t, int64_t);

/* How many numbers are in each bin, from one edge to before the next, and in the last one up to its end. A bin is found
 * by `scale` where the bins are about as wide, and put right by the edges; by bisection without a scale. */
#define BIN(T)                                                                                                         \
    static void bin_##T(const void *from, int64_t n, int64_t *part, int64_t number, int64_t step,                      \
                        const double *edges, double scale) {                                                           \
        const T *all = from;                                                                                           \
        const double first = edges[0], last = edges[number];                                                           \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            const double x = (double)all[i];                                                                           \
            if (!(x >= first && x <= last)) continue;                                                                  \
            int64_t low = 0;                                                                                           \
            if (scale > 0) {                                                                                           \
                low = (int64_t)((x - first) * scale);                                                                  \
                low = low < number ? low : number - 1;                                                                 \
                while (low > 0 && x < edges[low]) low--;                                                               \
                while (low < number - 1 && x >= edges[low + 1]) low++;                                                 \
            } else {                                                                                                   \
                for (int64_t left = number; left > 1;) {                                                               \
                    const int64_t half = left / 2;                                                                     \
                    low += x >= edges[low + half] ? half : 0;                                                          \
                    left -= half;                                                                                      \
                }                                                                                                      \
            }                                                                                                          \
            part[low + (i % TIMES) * step]++;                                                                          \
        }                                                                                                              \
    }

BIN(float)
BIN(double)
BIN(uint8_t)
BIN(int8_t)
BIN(uint16_t)
BIN(int16_t)
BIN(uint32_t)
BIN(int32_t)

typedef void (*Bin)(const void *, int64_t, int64_t *, int64_t, int64_t, const double *, double);

/* Of a dtype's character and its size. */
static Count counter(int kind, Py_ssize_t size) {
    if (kind == 'i') return size == 8 ? count_int64_t : NULL;
    if (kind != 'u') return NULL;
    return size == 1 ? count_uint8_t : size == 2 ? count_uint16_t : size == 4 ? count_uint32_t : count_uint64_t;
}

static Bin binner(int kind, Py_ssize_t size) {
    if (kind == 'f') return size == 4 ? bin_float : size == 8 ? bin_double : NULL;
    if (kind == 'u') return size == 1 ? bin_uint8_t : size == 2 ? bin_uint16_t : size == 4 ? bin_uint32_t : NULL;
    if (kind == 'i') return size == 1 ? bin_int8_t : size == 2 ? bin_int16_t : size == 4 ? bin_int32_t : NULL;
    return NULL;
}

/* Arguments: the kind of numbers, their size, the numbers, the counts to add to; and of bins their edges and a scale. */
static PyObject *py_add(PyObject *self, PyObject *args) {
    int kind;
    Py_ssize_t size;
    Py_buffer numbers, counts, edges = {0};
    double scale = 0;
    PyObject *result = NULL;
    int64_t *part = NULL;
    if (!PyArg_ParseTuple(args, "Cny*w*|y*d", &kind, &size, &numbers, &counts, &edges, &scale)) return NULL;
    const int64_t number = counts.len / sizeof(int64_t), n = size > 0 ? numbers.len / size : 0;
    const Count count = edges.buf ? NULL : counter(kind, size);
    const Bin bin = edges.buf ? binner(kind, size) : NULL;
    if ((!count && !bin) || (bin && (number < 1 || edges.len != (number + 1) * (Py_ssize_t)sizeof(double)))) {
        PyErr_SetString(PyExc_ValueError, "no such counts");
        goto end;
    }
    const int64_t step = number <= FEW ? number : 0;
    if (step && !(part = calloc((size_t)(TIMES * step), sizeof(int64_t)))) {
        PyErr_NoMemory();
        goto end;
    }
    Py_BEGIN_ALLOW_THREADS
    int64_t *to = part ? part : counts.buf, *sums = counts.buf;
    if (bin) bin(numbers.buf, n, to, number, step, edges.buf, scale);
    else count(numbers.buf, n, to, number, step);
    for (int64_t i = 0; i < TIMES * step; i++) sums[i % step] += part[i];
    Py_END_ALLOW_THREADS
    Py_INCREF(Py_None);
    result = Py_None;
end:
    free(part);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&counts);
    if (edges.buf) PyBuffer_Release(&edges);
    return result;
}

static PyMethodDef methods[] = {
    {"add", py_add, METH_VARARGS, "Add how often integers come, or numbers in bins, to counts."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_bins", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__bins(void) { return PyModule_Create(&module); }
