/*
 * Reference for bench/uncontended.py: holdfast's uncontended cycle, written in C.
 *
 * Measured: one cycle = the system calls below, from before the open to after the close.
 * Not measured: waiting, a lock that is already held, fsync.
 * `bench/run.py --strace` prints these calls next to those that holdfast really makes.
 *
 * usage: c_loop DIRECTORY LOCKPATH SLICE_NS WARMUP      (SLICE_NS 0: warm up, then one marked cycle)
 * output: one 64-bit native integer per cycle, nanoseconds, on stdout.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* As long as a sema record with the marker that holdfast adds to it. */
enum { RECORD_BYTES = 130, MAX_SAMPLES = 1 << 20 };

static void die(const char *what)
{
    fprintf(stderr, "c_loop: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void cycle(const char *directory, const char *path, const char *record)
{
    struct stat ours, named;
    char self[40], again[RECORD_BYTES + 1];

    int fd = open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
    if (fd < 0)
        die("open O_TMPFILE");
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        die("flock");
    if (fstat(fd, &ours) < 0)
        die("fstat");
    if (pwrite(fd, record, RECORD_BYTES, 0) != RECORD_BYTES)
        die("pwrite");
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) < 0)
        die("linkat");
    if (lstat(path, &named) < 0)
        die("lstat");
    if (ours.st_ino != named.st_ino || ours.st_dev != named.st_dev) {
        errno = ESTALE;
        die("the path names another file");
    }
    if (pread(fd, again, sizeof again, 0) != RECORD_BYTES)
        die("pread");
    if (unlink(path) < 0)
        die("unlink");
    if (flock(fd, LOCK_UN) < 0)
        die("unlock");
    if (close(fd) < 0)
        die("close");
}

int main(int argc, char **argv)
{
    static int64_t samples[MAX_SAMPLES];
    char record[RECORD_BYTES];
    size_t count = 0;

    if (argc != 5) {
        fprintf(stderr, "usage: c_loop DIRECTORY LOCKPATH SLICE_NS WARMUP\n");
        return 2;
    }
    memset(record, 'x', sizeof record);
    for (long i = atol(argv[4]); i > 0; i--)
        cycle(argv[1], argv[2], record);
    if (atoll(argv[3]) == 0) {
        /* The two failing calls mark where the cycle begins and ends in a system call trace. */
        access("/holdfast-bench-begin", F_OK);
        cycle(argv[1], argv[2], record);
        access("/holdfast-bench-end", F_OK);
        return 0;
    }
    int64_t begin = now_ns(), stop = begin + atoll(argv[3]);
    while (begin < stop && count < MAX_SAMPLES) {
        begin = now_ns();
        cycle(argv[1], argv[2], record);
        samples[count++] = now_ns() - begin;
    }
    if (fwrite(samples, sizeof samples[0], count, stdout) != count || fflush(stdout) != 0)
        die("stdout");
    return 0;
}
