/* Sums in double precision, of float32 without a copy in float64, and of squared differences from means; and exact ones
 * of counts of time.
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

/* Lanes added up to as many as are wanted: one, or two of real and imaginary parts. */
static inline void fold(double *v, int wanted) {
    for (int half = LANES / 2; half >= wanted; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
}

/* What is added of an element. */
#define ITSELF(x, mean) (double)(x)
#define OFF(x, mean) ((x) - (mean))
#define SQUARE(x, mean) (((x) - (mean)) * ((x) - (mean)))

/* Sums of rows of n elements at a distance of `stride` bytes, with a step of STEP elements in a row; each may have a
 * mean. Of PARTS of a complex number each has its own sum. Runs are added as in W. Kahan, "Further remarks on reducing
 * truncation errors", Communications of the ACM 8, 1965; what is infinite, plainly. */
#define ROWS(NAME, T, TERM, PARTS, STEP)                                                                               \
    static void rows_##NAME(const char *at, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, ptrdiff_t step,             \
                            double *out, const double *means) {                                                        \
        for (ptrdiff_t row = 0; row < rows; row++, at += stride, out += PARTS) {                                       \
            const T *x = (const T *)at;                                                                                \
            double total[PARTS] = {0}, lost[PARTS] = {0}, plain[PARTS] = {0}, mean = means ? means[row] : 0;           \
            (void)mean, (void)step;                                                                                    \
            for (ptrdiff_t left = n * PARTS; left > 0; left -= RUN, x += RUN * (STEP)) {                               \
                ptrdiff_t number = left < RUN ? left : RUN, i = 0;                                                     \
                double sums[LANES] = {0};                                                                              \
                for (; i + LANES <= number; i += LANES)                                                                \
                    for (int k = 0; k < LANES; k++) sums[k] += TERM(x[(i + k) * (STEP)], mean);                        \
                for (int k = 0; i < number; i++, k++) sums[k] += TERM(x[i * (STEP)], mean);                            \
                fold(sums, PARTS);                                                                                     \
                for (int p = 0; p < PARTS; p++) {                                                                      \
                    double kept = sums[p] - lost[p], next = total[p] + kept;                                           \
                    plain[p] += sums[p];                                                                               \
                    lost[p] = (next - total[p]) - kept;                                                                \
                    total[p] = next;                                                                                   \
                }                                                                                                      \
            }                                                                                                          \
            for (int p = 0; p < PARTS; p++) out[p] = isfinite(total[p]) ? total[p] : plain[p];                         \
        }                                                                                                              \
    }

/* Rows of n elements, added to one another; each of the sums may have a mean. */
#define COLUMNS(NAME, T, TERM)                                                                                         \
    static void columns_##NAME(const char *at, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, ptrdiff_t step,          \
                               double *out, const double *means) {                                                     \
        for (ptrdiff_t begin = 0; begin < n; begin += TILE) {                                                          \
            ptrdiff_t number = n - begin < TILE ? n - begin : TILE, row = 0;                                           \
            double *restrict sums = out + begin;                                                                       \
            const double *restrict mean = means ? means + begin : means;                                               \
            const char *here = at + begin * (ptrdiff_t)sizeof(T);                                                      \
            for (ptrdiff_t k = 0; k < number; k++) sums[k] = 0;                                                        \
            (void)mean, (void)step;                                                                                    \
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

#define BOTH(NAME, T, TERM) ROWS(NAME, T, TERM, 1, 1) COLUMNS(NAME, T, TERM)

BOTH(floats, float, ITSELF)
BOTH(floats_off, float, OFF)
BOTH(floats_squared, float, SQUARE)
BOTH(doubles, double, ITSELF)
BOTH(doubles_off, double, OFF)
BOTH(doubles_squared, double, SQUARE)
ROWS(pairs, float, ITSELF, 2, 1)
ROWS(apart, float, ITSELF, 1, step)

typedef void (*Sums)(const char *, ptrdiff_t, ptrdiff_t, ptrdiff_t, ptrdiff_t, double *, const double *);

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
        loop((const char *)(intptr_t)(at + i * pitch), rows, stride, n, 1, (double *)(intptr_t)(out + i * step),
             means ? (const double *)(intptr_t)(means + i * step) : NULL);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Step of a row's elements, or 0 if they are complex; address, planes and their distance, rows and theirs, elements of a
 * row; and the sums. */
static PyObject *py_add_rows(PyObject *self, PyObject *args) {
    long long apart, at, planes, pitch, rows, stride, n, out;
    if (!PyArg_ParseTuple(args, "LLLLLLLL", &apart, &at, &planes, &pitch, &rows, &stride, &n, &out)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < planes; i++)
        (apart ? rows_apart : rows_pairs)((const char *)(intptr_t)(at + i * pitch), rows, stride, n, apart,
                                          (double *)(intptr_t)out + i * rows * (apart ? 1 : 2), NULL);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Counts of time, of which the least integer is none, with the sign turned over: then the one that is none is zero, and
 * adds nothing. Their sum in 64 bits, that of their upper halves, and how many there are: the two give all bits of the
 * sum of up to 2^32 of them. */
static inline uint64_t turned(int64_t x) { return (uint64_t)x ^ (1ull << 63); }
static inline uint64_t is_there(uint64_t x) { return (x | (0 - x)) >> 63; }  /* without comparing: it fits all vectors */

static void rows_exact(const char *at, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, uint64_t *sums, uint64_t *upper,
                       uint64_t *number) {
    for (ptrdiff_t row = 0; row < rows; row++, at += stride) {
        const int64_t *x = (const int64_t *)at;
        uint64_t sum = 0, high = 0, there = 0;
        for (ptrdiff_t i = 0; i < n; i++) {
            uint64_t one = turned(x[i]);
            sum += one, high += one >> 32, there += is_there(one);
        }
        sums[row] = sum, upper[row] = high, number[row] = there;
    }
}

/* Four rows, added to the sums. Arguments are known not to overlap, or there would be no vectors. */
static void four_rows(const int64_t *restrict a, const int64_t *restrict b, const int64_t *restrict c,
                      const int64_t *restrict d, ptrdiff_t n, uint64_t *restrict sums, uint64_t *restrict upper,
                      uint64_t *restrict number) {
    for (ptrdiff_t k = 0; k < n; k++) {
        uint64_t p = turned(a[k]), q = turned(b[k]), r = turned(c[k]), s = turned(d[k]);
        sums[k] += p + q + r + s;
        upper[k] += (p >> 32) + (q >> 32) + (r >> 32) + (s >> 32);
        number[k] += is_there(p) + is_there(q) + is_there(r) + is_there(s);
    }
}

static void columns_exact(const char *at, ptrdiff_t rows, ptrdiff_t stride, ptrdiff_t n, uint64_t *sums,
                          uint64_t *upper, uint64_t *number) {
    enum { PART = TILE / 4 };
    int64_t none[PART];  /* stands for the rows that are not four */
    for (ptrdiff_t k = 0; k < PART && k < n && rows % 4; k++) none[k] = INT64_MIN;
    for (ptrdiff_t begin = 0; begin < n; begin += PART) {
        ptrdiff_t many = n - begin < PART ? n - begin : PART;
        const char *here = at + begin * (ptrdiff_t)sizeof(int64_t);
        for (ptrdiff_t k = begin; k < begin + many; k++) sums[k] = upper[k] = number[k] = 0;
        for (ptrdiff_t row = 0; row < rows; row += 4) {
            const int64_t *x[4];
            for (int i = 0; i < 4; i++) x[i] = row + i < rows ? (const int64_t *)(here + (row + i) * stride) : none;
            four_rows(x[0], x[1], x[2], x[3], many, sums + begin, upper + begin, number + begin);
        }
    }
}

/* Whether along rows; address, planes and their distance, rows and theirs, elements of a row; and the three results. */
static PyObject *py_add_exactly(PyObject *self, PyObject *args) {
    int along;
    long long at, planes, pitch, rows, stride, n, sums, upper, number;
    if (!PyArg_ParseTuple(args, "pLLLLLLLLL", &along, &at, &planes, &pitch, &rows, &stride, &n, &sums, &upper, &number))
        return NULL;
    int64_t step = (along ? rows : n) * sizeof(uint64_t);
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < planes; i++)
        (along ? rows_exact : columns_exact)(
            (const char *)(intptr_t)(at + i * pitch), rows, stride, n, (uint64_t *)(intptr_t)(sums + i * step),
            (uint64_t *)(intptr_t)(upper + i * step), (uint64_t *)(intptr_t)(number + i * step));
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* Sums of 128 bits, each divided by its number, less than 2^40: long division, with digits of 22 and 20 bits. The
 * quotient's sign is turned back, and it is rounded towards zero. */
static PyObject *py_divide(PyObject *self, PyObject *args) {
    static const int digits[3][2] = {{22, 42}, {22, 20}, {20, 0}};  /* bits, and the place of the lowest */
    long long n, sums, upper, number, out;
    if (!PyArg_ParseTuple(args, "LLLLL", &n, &sums, &upper, &number, &out)) return NULL;
    const uint64_t *low = (const uint64_t *)(intptr_t)sums, *high = (const uint64_t *)(intptr_t)upper;
    const uint64_t *by = (const uint64_t *)(intptr_t)number;
    int64_t *to = (int64_t *)(intptr_t)out;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; i < n; i++) {
        uint64_t rest = high[i], found = 0, m = by[i];
        for (int k = 0; k < 3; k++) {
            int bits = digits[k][0], place = digits[k][1];
            uint64_t part = (rest << bits) + ((low[i] >> place) & ((1ull << bits) - 1)), digit = part / m;
            found = (found << bits) + digit;
            rest = part - digit * m;
        }
        int64_t mean = (int64_t)(found ^ (1ull << 63));
        to[i] = mean + (rest != 0 && mean < 0);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"add", py_add, METH_VARARGS, "Sums along rows, or of rows; of elements, or of differences and squares from means."},
    {"add_rows", py_add_rows, METH_VARARGS, "Sums along rows of float32 with a step, or of complex64."},
    {"add_exactly", py_add_exactly, METH_VARARGS, "Sums of counts of time, of their upper halves, and their number."},
    {"divide", py_divide, METH_VARARGS, "Quotients of such sums and their numbers, none of which is zero."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_sums", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__sums(void) { return PyModule_Create(&module); }
