/* Preloaded into a process: the n-th system call of some kinds on files below a directory fails, as do all after it if
 * that is asked for, is cut short, comes with a signal, or is never made, because the process is killed before it. Or the
 * process stops before each call, or the disk takes n bytes more.
 *
 * faults_arm(directory, kinds, n, action, number) starts to count; faults_count(kinds) is how many calls there were of
 * some kinds, faults_written() the bytes of all writes. A call counts if its path lies below the directory, or its
 * descriptor was opened there. */
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

enum { NONE, KILL, FAIL, SHORT, FOREVER, SIGNAL, STOP, FULL };
enum { OPEN = 1, READ = 2, WRITE = 4, RENAME = 8, UNLINK = 16, MKDIR = 32, SYNC = 64, SIZE = 128, CLOSE = 256, LOCK = 512 };

static char below[PATH_MAX];
static size_t length;
static int kinds, action, number;
static atomic_long count, wanted, written, of_kind[10];
static atomic_int armed;

void faults_arm(const char *directory, int which, long n, int what, int error)
{
    snprintf(below, sizeof below, "%s", directory);
    length = strlen(below);
    kinds = which, action = what, number = error;
    atomic_store(&count, 0), atomic_store(&written, 0), atomic_store(&wanted, n), atomic_store(&armed, 1);
}

long faults_count(int which)
{
    long total = 0;
    for (int i = 0; i < 10; i++)
        total += which >> i & 1 ? atomic_load(&of_kind[i]) : 0;
    return total;
}
long faults_written(void) { return atomic_load(&written); }
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
    if (action == STOP)
        raise(SIGSTOP); /* of this thread: the call is not made before somebody lets it go on */
    if (action == FULL && kind != WRITE && atomic_load(&written) >= n)
        return errno = ENOSPC, 1;
    if (action == STOP || action == FULL)
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

/* How many of a call's bytes are moved; -1 if it fails with errno set. */
static ssize_t moved(int kind, int ours, size_t n)
{
    int how = strikes(kind, ours);
    long left;
    if (how == 1)
        return -1;
    if (ours && kind == WRITE) {
        left = atomic_load(&wanted) - atomic_fetch_add(&written, (long)n);
        if (action == FULL && left < (long)n)
            return left > 0 ? left : (errno = ENOSPC, -1);
    }
    return how == 2 && n > 1 ? n / 2 : n;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define STRIKES(kind, ours) (atomic_load(&armed) ? strikes(kind, ours) : 0)
#define MOVED(kind, ours, n) (atomic_load(&armed) ? moved(kind, ours, n) : (ssize_t)(n))

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

#define MOVES(name, kind, rest, passed) \
    ssize_t name rest \
    { \
        ssize_t most = MOVED(kind, is_open_below(fd), n); \
        REAL(name); \
        return most < 0 ? -1 : real passed; \
    }
MOVES(read, READ, (int fd, void *buffer, size_t n), (fd, buffer, most))
MOVES(write, WRITE, (int fd, const void *buffer, size_t n), (fd, buffer, most))
MOVES(pread, READ, (int fd, void *buffer, size_t n, off_t at), (fd, buffer, most, at))
MOVES(pread64, READ, (int fd, void *buffer, size_t n, off64_t at), (fd, buffer, most, at))
MOVES(pwrite, WRITE, (int fd, const void *buffer, size_t n, off_t at), (fd, buffer, most, at))
MOVES(pwrite64, WRITE, (int fd, const void *buffer, size_t n, off64_t at), (fd, buffer, most, at))

static size_t bytes_of(const struct iovec *parts, int n)
{
    size_t total = 0;
    for (int i = 0; i < n; i++)
        total += parts[i].iov_len;
    return total;
}

/* Of several parts that are cut short only the first is moved, or a part of it. */
#define MOVES_PARTS(name, kind, rest, whole, short_) \
    ssize_t name rest \
    { \
        size_t total = bytes_of(parts, n); \
        ssize_t most = MOVED(kind, is_open_below(fd), total); \
        struct iovec first; \
        REAL(name); \
        if (most < 0) \
            return -1; \
        if ((size_t)most == total) \
            return real whole; \
        first = parts[0]; \
        first.iov_len = first.iov_len < (size_t)most ? first.iov_len : (size_t)most; \
        return real short_; \
    }
#define PARTS(name, kind, offset_type) \
    MOVES_PARTS(name, kind, (int fd, const struct iovec *parts, int n, offset_type at), (fd, parts, n, at), (fd, &first, 1, at))
#define PARTS2(name, kind, offset_type) \
    MOVES_PARTS(name, kind, (int fd, const struct iovec *parts, int n, offset_type at, int flags), (fd, parts, n, at, flags), \
                (fd, &first, 1, at, flags))
PARTS(preadv, READ, off_t)
PARTS(preadv64, READ, off64_t)
PARTS(pwritev, WRITE, off_t)
PARTS(pwritev64, WRITE, off64_t)
PARTS2(preadv2, READ, off_t)
PARTS2(preadv64v2, READ, off64_t)
PARTS2(pwritev2, WRITE, off_t)
PARTS2(pwritev64v2, WRITE, off64_t)

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
