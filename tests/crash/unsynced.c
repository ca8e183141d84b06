/* Remembers what a power cut would take from the files of one process: loaded into it before libc (LD_PRELOAD).

   Every change below $UNSYNCED_ROOT is noted in $UNSYNCED_JOURNAL/journal before it is made, with what undoes it; every
   fsync that succeeded is noted behind it, with the last change that it can have covered. The process is then killed,
   and power_rig.py takes back what no fsync covered. Deleted and replaced files are kept by hard links in the journal's
   directory. Reads and writes themselves are those of the real file system.

   $UNSYNCED_BOOT_ID, when set, is the file that is read in place of the kernel's boot id, because a machine that lost
   power has a new one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))real_of(#name))

enum kind { WRITE = 1, SIZE, SYNC, CREATE, RENAME, UNLINK, LINK, MKDIR, RMDIR, SYNC_DIRECTORY };

/* What follows in the journal: `a_bytes` of a path or of old content, then `b_bytes` of a second path. */
struct note {
    uint64_t sequence, kind, device, inode, offset, old_size, covered, saved, a_bytes, b_bytes;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX], directory[PATH_MAX];
static size_t root_bytes;
static int journal = -1;
static uint64_t sequence, saved_count;

static void *real_of(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}

static void die(const char *what) {
    dprintf(2, "unsynced: %s: %s\n", what, strerror(errno));
    _exit(86);
}

__attribute__((constructor)) static void start(void) {
    const char *wanted = getenv("UNSYNCED_ROOT"), *notes = getenv("UNSYNCED_JOURNAL");
    if (!wanted || !notes) return;
    if (!realpath(wanted, root) || !realpath(notes, directory)) die("UNSYNCED_ROOT and UNSYNCED_JOURNAL must exist");
    root_bytes = strlen(root);
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/journal", directory);
    journal = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (journal < 0) die(path);
    struct stat state;
    if (fstat(journal, &state) || state.st_size) die("the journal must be a new one");
}

static void put(struct note *note, const void *a, const void *b) {
    note->sequence = ++sequence;
    struct iovec parts[3] = {{note, sizeof *note}, {(void *)a, note->a_bytes}, {(void *)b, note->b_bytes}};
    ssize_t wanted = sizeof *note + note->a_bytes + note->b_bytes;
    if (syscall(SYS_writev, journal, parts, 3) != wanted) die("the journal takes no notes");
}

static int is_below(const char *path) {
    return !strncmp(path, root, root_bytes) && (path[root_bytes] == '/' || !path[root_bytes]);
}

/* The absolute name of what `path` names, also when it is not there yet; 0 when it is outside of the root. */
static int locate(int at, const char *path, char *full) {
    if (journal < 0 || !path || !*path) return 0;
    char text[PATH_MAX], parent[PATH_MAX];
    if (path[0] == '/') {
        snprintf(text, sizeof text, "%s", path);
    } else {
        char link[64], base[PATH_MAX];
        if (at == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return 0;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t size = readlink(link, base, sizeof base - 1);
            if (size < 0) return 0;
            base[size] = 0;
        }
        if (snprintf(text, sizeof text, "%.2000s/%.2000s", base, path) < 0) return 0;
    }
    char *name = strrchr(text, '/');
    *name++ = 0;
    if (!realpath(*text ? text : "/", parent)) return 0;
    if (snprintf(full, PATH_MAX, "%.3800s/%.250s", parent, name) < 0) return 0;
    return is_below(full);
}

/* Whether a descriptor is of a regular file below the root. */
static int is_tracked(int fd, struct stat *state) {
    if (journal < 0 || fd == journal || fstat(fd, state) || !S_ISREG(state->st_mode)) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return is_below(path);
}

static void note_path(enum kind kind, const char *a, const char *b, uint64_t saved) {
    struct note note = {.kind = kind, .saved = saved, .a_bytes = strlen(a), .b_bytes = b ? strlen(b) : 0};
    put(&note, a, b);
}

/* Keeps a file that is about to lose its name; the number of the link, 0 when there is no such file. */
static uint64_t keep(const char *path) {
    struct stat state;
    if (lstat(path, &state) || !S_ISREG(state.st_mode)) return 0;
    char saved[PATH_MAX];
    snprintf(saved, sizeof saved, "%.4000s/%llu", directory, (unsigned long long)++saved_count);
    if (syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, saved, 0)) die(saved);
    return saved_count;
}

static void note_content(int fd, const struct stat *state, off_t offset, size_t size) {
    size_t kept = offset >= state->st_size ? 0 : size;
    if (offset + (off_t)kept > state->st_size) kept = state->st_size - offset;
    char *old = malloc(kept + 1);
    if (!old) die("no memory");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd); /* the descriptor itself may be for writing only */
    int reader = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    if (reader < 0) die("a file cannot be read");
    for (size_t done = 0; done < kept;) {
        ssize_t part = syscall(SYS_pread64, reader, old + done, kept - done, offset + done);
        if (part <= 0) die("old content cannot be read");
        done += part;
    }
    syscall(SYS_close, reader);
    struct note note = {.kind = WRITE, .device = state->st_dev, .inode = state->st_ino, .offset = offset,
                        .old_size = state->st_size, .covered = size, .a_bytes = kept};
    put(&note, old, NULL);
    free(old);
}

static void note_size(const struct stat *state) {
    struct note note = {.kind = SIZE, .device = state->st_dev, .inode = state->st_ino, .old_size = state->st_size};
    put(&note, NULL, NULL);
}

static size_t total(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    return size;
}

#define NOTED(fd, offset, size, call)                                     \
    struct stat state;                                                    \
    if (!is_tracked(fd, &state)) return call;                             \
    pthread_mutex_lock(&mutex);                                           \
    fstat(fd, &state);                                                    \
    note_content(fd, &state, offset, size);                               \
    ssize_t result = call;                                                \
    pthread_mutex_unlock(&mutex);                                         \
    return result

ssize_t write(int fd, const void *data, size_t size) {
    NOTED(fd, fcntl(fd, F_GETFL) & O_APPEND ? state.st_size : lseek(fd, 0, SEEK_CUR), size, REAL(write)(fd, data, size));
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    NOTED(fd, fcntl(fd, F_GETFL) & O_APPEND ? state.st_size : lseek(fd, 0, SEEK_CUR), total(parts, count),
          REAL(writev)(fd, parts, count));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { NOTED(fd, at, size, REAL(pwrite)(fd, data, size, at)); }
ssize_t pwrite64(int fd, const void *data, size_t size, off_t at) { return pwrite(fd, data, size, at); }
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    NOTED(fd, at, total(parts, count), REAL(pwritev)(fd, parts, count, at));
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off_t at) { return pwritev(fd, parts, count, at); }
/* What Python's os.pwritev calls. */
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    NOTED(fd, at, total(parts, count), REAL(pwritev2)(fd, parts, count, at, flags));
}
ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return pwritev2(fd, parts, count, at, flags);
}

#define SIZED(fd, failed, call)                                           \
    struct stat state;                                                    \
    if (!is_tracked(fd, &state)) return call;                             \
    pthread_mutex_lock(&mutex);                                           \
    fstat(fd, &state);                                                    \
    note_size(&state);                                                    \
    int result = call;                                                    \
    pthread_mutex_unlock(&mutex);                                         \
    return result

int ftruncate(int fd, off_t size) {
    struct stat before;
    if (is_tracked(fd, &before) && size < before.st_size) {
        pthread_mutex_lock(&mutex);
        note_content(fd, &before, size, before.st_size - size);
        pthread_mutex_unlock(&mutex);
    }
    SIZED(fd, -1, REAL(ftruncate)(fd, size));
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int posix_fallocate(int fd, off_t at, off_t size) { SIZED(fd, 1, REAL(posix_fallocate)(fd, at, size)); }
int posix_fallocate64(int fd, off_t at, off_t size) { return posix_fallocate(fd, at, size); }
int fallocate(int fd, int mode, off_t at, off_t size) { SIZED(fd, -1, REAL(fallocate)(fd, mode, at, size)); }
int fallocate64(int fd, int mode, off_t at, off_t size) { return fallocate(fd, mode, at, size); }

static int sync_with(int fd, int (*real)(int)) {
    struct stat state;
    char path[PATH_MAX], link[64];
    if (journal < 0 || fstat(fd, &state)) return real(fd);
    pthread_mutex_lock(&mutex);
    uint64_t covered = sequence;
    pthread_mutex_unlock(&mutex);
    int result = real(fd);
    if (result) return result;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return result;
    path[size] = 0;
    if (!is_below(path)) return result;
    pthread_mutex_lock(&mutex);
    struct note note = {.kind = S_ISDIR(state.st_mode) ? SYNC_DIRECTORY : SYNC, .device = state.st_dev,
                        .inode = state.st_ino, .covered = covered, .a_bytes = strlen(path)};
    put(&note, path, NULL);
    pthread_mutex_unlock(&mutex);
    return result;
}
int fsync(int fd) { return sync_with(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_with(fd, REAL(fdatasync)); }

static int open_noted(int at, const char *path, int flags, mode_t mode) {
    const char *boot_id = getenv("UNSYNCED_BOOT_ID");
    if (boot_id && path && !strcmp(path, "/proc/sys/kernel/random/boot_id")) path = boot_id;
    char full[PATH_MAX];
    struct stat state;
    if (!(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE || !locate(at, path, full))
        return syscall(SYS_openat, at, path, flags, mode);
    pthread_mutex_lock(&mutex);
    int is_new = stat(full, &state) != 0;
    int fd = -1;
    if (!is_new && flags & O_TRUNC && !(flags & O_EXCL)) {
        fd = syscall(SYS_openat, at, path, flags & ~O_TRUNC, mode);
        if (fd >= 0) {
            note_content(fd, &state, 0, state.st_size);
            note_size(&state);
            if (REAL(ftruncate)(fd, 0)) die("O_TRUNC");
        }
    } else {
        if (is_new && flags & O_CREAT) note_path(CREATE, full, NULL, 0);
        fd = syscall(SYS_openat, at, path, flags, mode);
    }
    pthread_mutex_unlock(&mutex);
    return fd;
}

#define MODE(flags)                                                       \
    mode_t mode = 0;                                                      \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                \
        va_list rest;                                                     \
        va_start(rest, flags);                                            \
        mode = va_arg(rest, mode_t);                                      \
        va_end(rest);                                                     \
    }
int open(const char *path, int flags, ...) { MODE(flags) return open_noted(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_noted(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_noted(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_noted(at, path, flags, mode); }

int renameat(int from_at, const char *from, int to_at, const char *to) {
    char a[PATH_MAX], b[PATH_MAX];
    struct stat first, second;
    if (!locate(from_at, from, a) || !locate(to_at, to, b)) return REAL(renameat)(from_at, from, to_at, to);
    pthread_mutex_lock(&mutex);
    /* rename() of two names of one file does nothing. */
    int is_one = !stat(a, &first) && !stat(b, &second) && first.st_ino == second.st_ino;
    if (!is_one) note_path(RENAME, a, b, keep(b));
    int result = REAL(renameat)(from_at, from, to_at, to);
    if (result && !is_one) die("a rename failed that is noted");
    pthread_mutex_unlock(&mutex);
    return result;
}
int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int at, const char *path, int flags) {
    char full[PATH_MAX];
    struct stat state;
    if (!locate(at, path, full) || lstat(full, &state)) return REAL(unlinkat)(at, path, flags);
    pthread_mutex_lock(&mutex);
    uint64_t saved = flags & AT_REMOVEDIR ? 0 : keep(full);
    int result = REAL(unlinkat)(at, path, flags);
    if (!result) note_path(flags & AT_REMOVEDIR ? RMDIR : UNLINK, full, NULL, saved);
    pthread_mutex_unlock(&mutex);
    return result;
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int remove(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    char full[PATH_MAX];
    if (!locate(to_at, to, full)) return REAL(linkat)(from_at, from, to_at, to, flags);
    pthread_mutex_lock(&mutex);
    int result = REAL(linkat)(from_at, from, to_at, to, flags);
    if (!result) note_path(LINK, full, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int mkdirat(int at, const char *path, mode_t mode) {
    char full[PATH_MAX];
    if (!locate(at, path, full)) return REAL(mkdirat)(at, path, mode);
    pthread_mutex_lock(&mutex);
    int result = REAL(mkdirat)(at, path, mode);
    if (!result) note_path(MKDIR, full, NULL, 0);
    pthread_mutex_unlock(&mutex);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
