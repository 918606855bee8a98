/* Preloaded into a program: wall-clock time comes from a shared 8-byte cell, in
 * microseconds since 1970. Zero means real time. Other clocks stay real, so that
 * timers of the event loop keep running, unless TESTKIT_CLOCK_TIMERS is set:
 *
 * stopped: monotonic clocks show the cell's time too.
 * advance: likewise, and a wait for events that ends by its timeout advances the
 *          cell by that timeout. So time passes by the timers of the program's
 *          event loop alone, however slow the machine is.
 *
 * A program that reads a stopped clock in a loop, until time has passed, would never
 * end. So reads beyond the PATIENCEth without a wait for events see time pass. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE 10000
#define MICROS_PER_READ 100

static uint64_t *cell;
static int stopped, advance;
static uint64_t reads;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("TESTKIT_CLOCK");
    const char *timers = getenv("TESTKIT_CLOCK_TIMERS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        perror("testkit clock");
        _exit(97);
    }
    close(fd);
    cell = map;
    advance = timers && strcmp(timers, "advance") == 0;
    stopped = advance || (timers && strcmp(timers, "stopped") == 0);
}

int clock_gettime(clockid_t id, struct timespec *out) {
    int wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    int monotonic = id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_MONOTONIC_RAW || id == CLOCK_BOOTTIME;
    int shown = wall || (stopped && monotonic);
    uint64_t now = shown && cell ? __atomic_load_n(cell, __ATOMIC_RELAXED) : 0;
    /* Not dlsym: it may allocate, and the allocator asks for the time. */
    if (now == 0) return (int)syscall(SYS_clock_gettime, id, out);
    if (!wall) {
        uint64_t read = __atomic_add_fetch(&reads, 1, __ATOMIC_RELAXED);
        if (read > PATIENCE) now += (read - PATIENCE) * MICROS_PER_READ;
    }
    out->tv_sec = (time_t)(now / 1000000);
    out->tv_nsec = (long)(now % 1000000) * 1000;
    return 0;
}

int gettimeofday(struct timeval *out, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* Valkey from 9.1 on asks for the wall-clock time once a millisecond, and adds what
 * the processor's counter has counted since. It does so where this file says that
 * the counter's speed is constant. */
typedef FILE *opener(const char *, const char *);

static FILE *open_other(const char *name, const char *path, const char *mode) {
    opener *next = strcmp(path, "/proc/cpuinfo") ? (opener *)dlsym(RTLD_NEXT, name) : NULL;
    if (next) return next(path, mode);
    errno = ENOENT;
    return NULL;
}

FILE *fopen(const char *path, const char *mode) { return open_other("fopen", path, mode); }

FILE *fopen64(const char *path, const char *mode) { return open_other("fopen64", path, mode); }

int epoll_wait(int fd, struct epoll_event *events, int max, int timeout) {
    __atomic_store_n(&reads, 0, __ATOMIC_RELAXED);
    int count = (int)syscall(SYS_epoll_pwait, fd, events, max, timeout, NULL, 8);
    /* What was read meanwhile, by a thread without events, is no time for what the events lead to. */
    __atomic_store_n(&reads, 0, __ATOMIC_RELAXED);
    if (count == 0 && timeout > 0 && advance && __atomic_load_n(cell, __ATOMIC_RELAXED) != 0)
        __atomic_fetch_add(cell, (uint64_t)timeout * 1000, __ATOMIC_RELAXED);
    return count;
}
