/* Sums in double precision, of float32 without a copy in float64, and of squared differences from means.
 *
 * NumPy converts float32 in small pieces, which takes three times as long as to add them. Runs of a row are added in 16
 * lanes, and then these: the compiler finds vectors of any width in it, and the order of all sums is fixed. Sums of
 * columns are added row by row, four at a time.
 *
 * Whoever calls keeps the arrays at the addresses.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stddef.h>
#include <stdint.h>

enum { LANES = 16, RUN = 1024, TILE = 4096 };  /* elements; a tile of sums stays in the first cache or the second */

static double folded(double *v) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

/* What is added of an element. */
#define ITSELF(x, mean) (double)(x)
#define OFF(x, mean) ((x) - (mean))
#define SQUARE(x, mean) (((x) - (mean)) * ((x) - (mean)))

/* Sums of rows of n elements at a distance of `stride` bytes; each may have a mean. Runs are added as in W. Kahan,
 * "Further remarks on reducing truncation errors", Communications of the ACM 8, 1965; what is infinite, plainly. */
#define ROWS(NAME, T, TERM)                                                                                            \
    static void rows_##NAME(const char *at, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, double *out,                \
                            const double *means) {                                                                     \
        for (ptrdiff_t row = 0; row < rows; row++, at += stride) {                                                     \
            const T *x = (const T *)at;                                                                                \
            double total = 0, lost = 0, plain = 0, mean = means ? means[row] : 0;                                      \
            (void)mean;                                                                                                \
            for (ptrdiff_t left = n; left > 0; left -= RUN, x += RUN) {                                                \
                ptrdiff_t number = left < RUN ? left : RUN, i = 0;                                                     \
                double sums[LANES] = {0};                                                                              \
                for (; i + LANES <= number; i += LANES)                                                                \
                    for (int k = 0; k < LANES; k++) sums[k] += TERM(x[i + k], mean);                                   \
                for (int k = 0; i < number; i++, k++) sums[k] += TERM(x[i], mean);                                     \
                double more = folded(sums), kept = more - lost, next = total + kept;                                   \
                plain += more;                                                                                         \
                lost = (next - total) - kept;                                                                          \
                total = next;                                                                                          \
            }                                                                                                          \
            out[row] = isfinite(total) ? total : plain;                                                                \
        }                                                                                                              \
    }

/* Rows of n elements, added to one another; each of the sums may have a mean. */
#define COLUMNS(NAME, T, TERM)                                                                                         \
    static void columns_##NAME(const char *at, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, double *out,             \
                               const double *means) {                                                                  \
        for (ptrdiff_t begin = 0; begin < n; begin += TILE) {                                                          \
            ptrdiff_t number = n - begin < TILE ? n - begin : TILE, row = 0;                                           \
            double *restrict sums = out + begin;                                                                       \
            const double *restrict mean = means ? means + begin : means;                                               \
            const char *here = at + begin * (ptrdiff_t)sizeof(T);                                                      \
            for (ptrdiff_t k = 0; k < number; k++) sums[k] = 0;                                                        \
            (void)mean;                                                                                                \
            for (; row + 4 <= rows; row += 4) {                                                                        \
                const T *restrict a = (const T *)(here + row * stride), *restrict b = (const T *)((char *)a + stride); \
                const T *restrict c = (const T *)((char *)b + stride), *restrict d = (const T *)((char *)c + stride);  \
                for (ptrdiff_t k = 0; k < number; k++)                                                                 \
                    sums[k] = (((sums[k] + TERM(a[k], mean[k])) + TERM(b[k], mean[k])) + TERM(c[k], mean[k]))          \
                              + TERM(d[k], mean[k]);                                                                   \
            }                                                                                                          \
            for (; row < rows; row++) {                                                                                \
                const T *restrict x = (const T *)(here + row * stride);                                                \
                for (ptrdiff_t k = 0; k < number; k++) sums[k] += TERM(x[k], mean[k]);                                 \
            }                                                                                                          \
        }                                                                                                              \
    }

#define BOTH(NAME, T, TERM) ROWS(NAME, T, TERM) COLUMNS(NAME, T, TERM)

BOTH(floats, float, ITSELF)
BOTH(floats_off, float, OFF)
BOTH(floats_squared, float, SQUARE)
BOTH(doubles, double, ITSELF)
BOTH(doubles_off, double, OFF)
BOTH(doubles_squared, double, SQUARE)

typedef void (*Sums)(const char *, ptrdiff_t, ptrdiff_t, ptrdiff_t, double *, const double *);

/* By what is added, the size of elements, and whether rows are summed or added to one another. */
static const Sums loops[3][2][2] = {
    {{columns_floats, rows_floats}, {columns_doubles, rows_doubles}},
    {{columns_floats_off, rows_floats_off}, {columns_doubles_off, rows_doubles_off}},
    {{columns_floats_squared, rows_floats_squared}, {columns_doubles_squared, rows_doubles_squared}},
};

/* What is added, bytes of an element, whether along rows; address, planes and their distance, rows and theirs, elements
 * of a row; sums, and means or 0. */
static PyObject *py_add(PyObject *self, PyObject *args) {
    int what, size, along;
    long long at, planes, pitch, rows, stride, n, out, means;
    if (!PyArg_ParseTuple(args, "iipLLLLLLLL", &what, &size, &along, &at, &planes, &pitch, &rows, &stride, &n, &out,
                          &means))
        return NULL;
    if (what < 0 || what > 2 || (what > 0) != (means != 0) || (size != sizeof(float) && size != sizeof(double))) {
        PyErr_SetString(PyExc_ValueError, "no such sums");
        return NULL;
    }
    Sums loop = loops[what][size == sizeof(double)][along];
    int64_t step = (along ? rows : n) * sizeof(double);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < planes; i++)
        loop((const char *)(intptr_t)(at + i * pitch), rows, stride, n, (double *)(intptr_t)(out + i * step),
             means ? (const double *)(intptr_t)(means + i * step) : NULL);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add", py_add, METH_VARARGS, "Sums along rows, or of rows; of elements, or of differences and squares from means."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sums", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sums(void) { return PyModule_Create(&module); }
