// SPDX-License-Identifier: Apache-2.0

/* Moves the system clock of one process: LD_PRELOAD, with the offset [ns] in the file that
 * STEPPED_CLOCK names. A wait with a deadline on that clock looks again every 20 ms, as the kernel
 * would have it follow a step. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t SECOND_NS = 1000000000, SLICE_NS = 20000000, SINCE_BOOT_S = 1000000000;
static volatile int64_t *offset;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_sem)(sem_t *, const struct timespec *);

__attribute__((constructor)) static void open_offset(void) {
  const char *path = getenv("STEPPED_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  real_cond = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_sem = dlsym(RTLD_NEXT, "sem_timedwait");
  if (file < 0) return;
  void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (page != MAP_FAILED) offset = page;
}

static int64_t nanoseconds(const struct timespec *at) {
  return at->tv_sec * SECOND_NS + at->tv_nsec;
}

static void set(struct timespec *at, int64_t ns) {
  at->tv_sec = ns / SECOND_NS;
  at->tv_nsec = ns % SECOND_NS;
}

static void true_now(struct timespec *now) {
  if (!real_gettime) real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  real_gettime(CLOCK_REALTIME, now);
}

int clock_gettime(clockid_t id, struct timespec *at) {
  if (!real_gettime) real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real_gettime(id, at);
  if (!status && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
    set(at, nanoseconds(at) + *offset);
  return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

/* Put the end of the next slice of a wait into `slice`; return whether the deadline is in it. */
static int next_slice(const struct timespec *deadline, struct timespec *slice) {
  struct timespec now;
  true_now(&now);
  int64_t moved = nanoseconds(deadline) - (offset ? *offset : 0);
  int64_t end = nanoseconds(&now) + SLICE_NS;
  set(slice, moved < end ? moved : end);
  return moved <= end;
}

int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline) {
  struct timespec slice;
  /* a condition may have been made for the monotonic clock, which counts from the last boot */
  if (deadline->tv_sec < SINCE_BOOT_S) return real_cond(cond, mutex, deadline);
  int is_last = next_slice(deadline, &slice);
  int status = real_cond(cond, mutex, &slice);
  /* a condition may wake for no reason, and its waiter looks at the deadline again */
  return status == ETIMEDOUT && !is_last ? 0 : status;
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict deadline) {
  for (;;) {
    struct timespec slice;
    int is_last = next_slice(deadline, &slice);
    int status = real_sem(sem, &slice);
    if (!status || errno != ETIMEDOUT || is_last) return status;
  }
}
