/* Preloaded into a process: the n-th system call of some kinds on files below a directory fails, as do all after it if
 * that is asked for, is cut short, comes with a signal, or is never made, because the process is killed before it.
 *
 * faults_arm(directory, kinds, n, action, number) starts to count; faults_count(kinds) is how many calls there were of some kinds. A call
 * counts if its path lies below the directory, or its descriptor was opened there. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, KILL, FAIL, SHORT, FOREVER, SIGNAL };
enum { OPEN = 1, READ = 2, WRITE = 4, RENAME = 8, UNLINK = 16, MKDIR = 32, SYNC = 64, SIZE = 128, CLOSE = 256, LOCK = 512 };

static char below[PATH_MAX];
static size_t length;
static int kinds, action, number;
static atomic_long count, wanted, of_kind[10];
static atomic_int armed;

void faults_arm(const char *directory, int which, long n, int what, int error)
{
    snprintf(below, sizeof below, "%s", directory);
    length = strlen(below);
    kinds = which, action = what, number = error;
    atomic_store(&count, 0), atomic_store(&wanted, n), atomic_store(&armed, 1);
}

long faults_count(int which)
{
    long total = 0;
    for (int i = 0; i < 10; i++)
        total += which >> i & 1 ? atomic_load(&of_kind[i]) : 0;
    return total;
}
void faults_disarm(void) { atomic_store(&armed, 0); }

static int is_below(const char *path)
{
    return path && !strncmp(path, below, length) && (path[length] == '/' || !path[length]);
}

static int is_below_at(int folder, const char *path)
{
    char link[64], whole[2 * PATH_MAX];
    ssize_t n;
    if (!path)
        return 0;
    if (path[0] == '/' || folder == AT_FDCWD)
        return is_below(path);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    n = readlink(link, whole, PATH_MAX);
    if (n < 0)
        return 0;
    whole[n] = 0;
    return is_below(whole);
}

static int is_open_below(int fd)
{
    char link[64], path[PATH_MAX];
    ssize_t n;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return 0;
    path[n] = 0;
    return is_below(path);
}

/* What is done in place of a call: 0 nothing, 1 it fails with errno set, 2 it is cut short. */
static int strikes(int kind, int ours)
{
    long now, n = atomic_load(&wanted);
    if (!ours)
        return 0;
    atomic_fetch_add(&of_kind[__builtin_ctz(kind)], 1);
    if (!(kinds & kind))
        return 0;
    now = atomic_fetch_add(&count, 1) + 1;
    if (now < n || n < 0 || (now > n && action != FOREVER))
        return 0;
    if (action == KILL)
        kill(getpid(), SIGKILL), pause();
    if (action == SIGNAL)
        kill(getpid(), number);
    if (action == SHORT)
        return 2;
    errno = number;
    return action == FAIL || action == FOREVER;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define STRIKES(kind, ours) (atomic_load(&armed) ? strikes(kind, ours) : 0)

#define OPENS(name) \
    int name(const char *path, int flags, ...) \
    { \
        va_list rest; \
        mode_t mode = 0; \
        REAL(name); \
        if (flags & (O_CREAT | O_TMPFILE)) \
            va_start(rest, flags), mode = va_arg(rest, mode_t), va_end(rest); \
        return STRIKES(OPEN, is_below(path)) == 1 ? -1 : real(path, flags, mode); \
    }
#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) \
    { \
        va_list rest; \
        mode_t mode = 0; \
        REAL(name); \
        if (flags & (O_CREAT | O_TMPFILE)) \
            va_start(rest, flags), mode = va_arg(rest, mode_t), va_end(rest); \
        return STRIKES(OPEN, is_below_at(folder, path)) == 1 ? -1 : real(folder, path, flags, mode); \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

#define MOVES(name, kind, type, offset_type) \
    ssize_t name(int fd, type buffer, size_t n, offset_type at) \
    { \
        int how = STRIKES(kind, is_open_below(fd)); \
        REAL(name); \
        return how == 1 ? -1 : real(fd, buffer, how == 2 && n > 1 ? n / 2 : n, at); \
    }
MOVES(pread, READ, void *, off_t)
MOVES(pread64, READ, void *, off64_t)
MOVES(pwrite, WRITE, const void *, off_t)
MOVES(pwrite64, WRITE, const void *, off64_t)

ssize_t read(int fd, void *buffer, size_t n)
{
    int how = STRIKES(READ, is_open_below(fd));
    REAL(read);
    return how == 1 ? -1 : real(fd, buffer, how == 2 && n > 1 ? n / 2 : n);
}

ssize_t write(int fd, const void *buffer, size_t n)
{
    int how = STRIKES(WRITE, is_open_below(fd));
    REAL(write);
    return how == 1 ? -1 : real(fd, buffer, how == 2 && n > 1 ? n / 2 : n);
}

#define MOVES_PARTS(name, kind, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int n, offset_type at) \
    { \
        struct iovec first; \
        int how = STRIKES(kind, is_open_below(fd)); \
        REAL(name); \
        if (how == 1) \
            return -1; \
        if (how != 2 || n < 1) \
            return real(fd, parts, n, at); \
        first = parts[0]; \
        first.iov_len = first.iov_len > 1 ? first.iov_len / 2 : first.iov_len; \
        return real(fd, &first, 1, at); \
    }
MOVES_PARTS(preadv, READ, off_t)
MOVES_PARTS(preadv64, READ, off64_t)
MOVES_PARTS(pwritev, WRITE, off_t)
MOVES_PARTS(pwritev64, WRITE, off64_t)

#define MOVES_PARTS2(name, kind, offset_type) \
    ssize_t name(int fd, const struct iovec *parts, int n, offset_type at, int flags) \
    { \
        struct iovec first; \
        int how = STRIKES(kind, is_open_below(fd)); \
        REAL(name); \
        if (how == 1) \
            return -1; \
        if (how != 2 || n < 1) \
            return real(fd, parts, n, at, flags); \
        first = parts[0]; \
        first.iov_len = first.iov_len > 1 ? first.iov_len / 2 : first.iov_len; \
        return real(fd, &first, 1, at, flags); \
    }
MOVES_PARTS2(preadv2, READ, off_t)
MOVES_PARTS2(preadv64v2, READ, off64_t)
MOVES_PARTS2(pwritev2, WRITE, off_t)
MOVES_PARTS2(pwritev64v2, WRITE, off64_t)

#define SIMPLE(result, name, arguments, kind, ours, passed, failed) \
    result name arguments \
    { \
        int how = STRIKES(kind, ours); \
        REAL(name); \
        return how == 1 ? failed : real passed; \
    }
SIMPLE(int, rename, (const char *a, const char *b), RENAME, is_below(a) || is_below(b), (a, b), -1)
SIMPLE(int, renameat, (int f, const char *a, int g, const char *b), RENAME, is_below_at(f, a) || is_below_at(g, b), (f, a, g, b), -1)
SIMPLE(int, renameat2, (int f, const char *a, int g, const char *b, unsigned flags), RENAME, is_below_at(f, a) || is_below_at(g, b), (f, a, g, b, flags), -1)
SIMPLE(int, link, (const char *a, const char *b), RENAME, is_below(a) || is_below(b), (a, b), -1)
SIMPLE(int, unlink, (const char *path), UNLINK, is_below(path), (path), -1)
SIMPLE(int, unlinkat, (int f, const char *path, int flags), UNLINK, is_below_at(f, path), (f, path, flags), -1)
SIMPLE(int, rmdir, (const char *path), UNLINK, is_below(path), (path), -1)
SIMPLE(int, mkdir, (const char *path, mode_t mode), MKDIR, is_below(path), (path, mode), -1)
SIMPLE(int, mkdirat, (int f, const char *path, mode_t mode), MKDIR, is_below_at(f, path), (f, path, mode), -1)
SIMPLE(int, fsync, (int fd), SYNC, is_open_below(fd), (fd), -1)
SIMPLE(int, fdatasync, (int fd), SYNC, is_open_below(fd), (fd), -1)
SIMPLE(int, syncfs, (int fd), SYNC, is_open_below(fd), (fd), -1)
SIMPLE(int, ftruncate, (int fd, off_t n), SIZE, is_open_below(fd), (fd, n), -1)
SIMPLE(int, ftruncate64, (int fd, off64_t n), SIZE, is_open_below(fd), (fd, n), -1)
SIMPLE(int, fallocate, (int fd, int mode, off_t a, off_t n), SIZE, is_open_below(fd), (fd, mode, a, n), -1)
SIMPLE(int, fallocate64, (int fd, int mode, off64_t a, off64_t n), SIZE, is_open_below(fd), (fd, mode, a, n), -1)
SIMPLE(int, posix_fallocate, (int fd, off_t a, off_t n), SIZE, is_open_below(fd), (fd, a, n), number)
SIMPLE(int, posix_fallocate64, (int fd, off64_t a, off64_t n), SIZE, is_open_below(fd), (fd, a, n), number)
SIMPLE(int, flock, (int fd, int how_), LOCK, is_open_below(fd), (fd, how_), -1)

int close(int fd)
{
    int how = STRIKES(CLOSE, is_open_below(fd));
    REAL(close);
    if (how != 1)
        return real(fd);
    real(fd); /* Linux closes it all the same */
    errno = number;
    return -1;
}
