// A disk that fails. A program that loads this before its C library (LD_PRELOAD) meets it in every call that writes.
//
// FAULTY_FOLDER is the folder that lies on the disk, and the file FAULTY_ORDER says what happens there:
//
//   nothing        nothing
//   write NUMBER   what writes, makes, renames or removes a file ends with this error
//   sync NUMBER    writing works, and what brings it to the disk ends with this error
//   hang 0         what brings it to the disk takes until the order is another one
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

// The error that the order has for `what`, 0 if it has none.
static int ordered(const char *what) {
    const char *path = getenv("FAULTY_ORDER");
    int file = path ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    char text[32] = {0}, kind[16] = {0};
    int number = 0;
    ssize_t len = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    if (len <= 0 || sscanf(text, "%15s %d", kind, &number) != 2 || strcmp(kind, what) != 0) return 0;
    return number ? number : -1;
}

static int is_there(const char *path) {
    const char *folder = getenv("FAULTY_FOLDER");
    return folder && strncmp(path, folder, strlen(folder)) == 0;
}

static int is_file_there(int file) {
    char link[64], path[PATH_MAX] = {0};
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    return readlink(link, path, sizeof path - 1) > 0 && is_there(path);
}

// Whether a write fails; `errno` says how.
static int fails(int is_on_disk) {
    int error = is_on_disk ? ordered("write") : 0;
    if (error) errno = error;
    return error != 0;
}

static int sync_fails(int file) {
    if (!is_file_there(file)) return 0;
    while (ordered("hang")) usleep(20000);
    int error = ordered("sync");
    if (!error) error = ordered("write");
    if (error) errno = error;
    return error != 0;
}

#define FILE_CALL(type, name, parameters, arguments)                                             \
    type name parameters { return fails(is_file_there(file)) ? -1 : NEXT(name) arguments; }
#define PATH_CALL(name, parameters, arguments)                                                   \
    int name parameters { return fails(is_there(path)) ? -1 : NEXT(name) arguments; }

FILE_CALL(ssize_t, write, (int file, const void *bytes, size_t len), (file, bytes, len))
FILE_CALL(ssize_t, pwrite, (int file, const void *bytes, size_t len, off_t at), (file, bytes, len, at))
FILE_CALL(ssize_t, pwrite64, (int file, const void *bytes, size_t len, off64_t at), (file, bytes, len, at))
FILE_CALL(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count))
FILE_CALL(int, ftruncate, (int file, off_t len), (file, len))
FILE_CALL(int, ftruncate64, (int file, off64_t len), (file, len))
PATH_CALL(rename, (const char *path, const char *to), (path, to))
PATH_CALL(unlink, (const char *path), (path))

int fsync(int file) { return sync_fails(file) ? -1 : NEXT(fsync)(file); }
int fdatasync(int file) { return sync_fails(file) ? -1 : NEXT(fdatasync)(file); }

static int open_fails(const char *path, int flags) {
    return (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) && fails(is_there(path));
}

#define OPEN_CALL(name)                                                                          \
    int name(const char *path, int flags, ...) {                                                 \
        va_list rest;                                                                            \
        va_start(rest, flags);                                                                   \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                  \
        va_end(rest);                                                                            \
        return open_fails(path, flags) ? -1 : NEXT(name)(path, flags, mode);                     \
    }

OPEN_CALL(open)
OPEN_CALL(open64)
