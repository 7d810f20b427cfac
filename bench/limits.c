/*
 * Limits: what locks between processes cost when nothing of Python is in them. See bench/limits.py.
 *
 * mutex: pthread_mutex_t, process-shared and robust, in a file that every process maps. It waits in futex(2).
 * flock: flock(2), blocking, each process on a descriptor of its own.
 * Neither says who holds it; the mutex needs memory that all share, and none of the others may be malicious.
 *
 * The modes do what the suites of the same name do (uncontended.py, handoff.py, crash.py, fairness.py, waiters.py),
 * and count and time as those do. In `uncontended` each sample is the mean of BATCH cycles: one takes less than the clock.
 *
 * usage: limits mutex|flock PATH MODE ...
 *        uncontended SLICE_NS WARMUP
 *        handoff CPU CPU WARMUP PAUSE_NS ...          (a CPU of -1: where the scheduler puts it)
 *        crash PAUSE_NS ...
 *        fairness PROCESSES NS WARMUP_NS
 *        waiters PROCESSES WINDOW_NS LIMIT_NS
 * output: 64-bit native integers on stdout. uncontended, handoff, crash: samples, ns. fairness: of each process, its
 *         acquisitions, waits, their sum, the longest, its sleeps; then a sample of the waits. waiters: wake-ups, wake-ups
 *         a second before the release, bytes of one, then the moment of each acquisition.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 100, MAX_SAMPLES = 1 << 20, KEPT = 4096, WEIGHED = 10, SLOTS = 1 << 16 };
static const int64_t LOOK_NS = 300000, SETTLE_NS = 300000000;

static int is_mutex, descriptor;
static const char *lock_path;
static pthread_mutex_t *mutex;
static atomic_llong *slots;

static void die(const char *what)
{
    fprintf(stderr, "limits: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void sleep_ns(int64_t ns)
{
    struct timespec t = {ns / 1000000000, ns % 1000000000};
    if (ns > 0)
        nanosleep(&t, NULL);
}

/* Looks now and then instead of spinning, as Slots.wait in procs.py does. */
static void wait_for(int slot, int64_t value)
{
    while (slots[slot] < value)
        sleep_ns(LOOK_NS);
}

static void put(const int64_t *numbers, size_t count)
{
    if (fwrite(numbers, sizeof numbers[0], count, stdout) != count || fflush(stdout) != 0)
        die("stdout");
}

static void *shared(size_t bytes, int fd)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    if (memory == MAP_FAILED)
        die("mmap");
    return memory;
}

/* In every process, after its fork: flock(2) locks belong to the open file, which a fork shares. */
static void open_lock(void)
{
    descriptor = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (descriptor < 0)
        die("open");
}

static void make_lock(void)
{
    pthread_mutexattr_t how;

    open_lock();
    if (!is_mutex)
        return;
    if (ftruncate(descriptor, sizeof *mutex) < 0)
        die("ftruncate");
    mutex = shared(sizeof *mutex, descriptor);
    if (pthread_mutexattr_init(&how) || pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED) ||
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST) || pthread_mutex_init(mutex, &how))
        die("pthread_mutex_init");
}

static void acquire(void)
{
    if (!is_mutex) {
        if (flock(descriptor, LOCK_EX) < 0)
            die("flock");
        return;
    }
    errno = pthread_mutex_lock(mutex);
    if (errno == EOWNERDEAD)
        errno = pthread_mutex_consistent(mutex);
    if (errno)
        die("pthread_mutex_lock");
}

static void release(void)
{
    if (is_mutex)
        errno = pthread_mutex_unlock(mutex);
    else if (flock(descriptor, LOCK_UN) == 0)
        errno = 0;
    if (errno)
        die("unlock");
}

/* 0 in the child, which the kernel kills with its parent. */
static pid_t forked(void)
{
    pid_t parent = getpid(), pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        open_lock();
    }
    return pid;
}

static void reap(pid_t pid, int signalled)
{
    int status;
    if (waitpid(pid, &status, 0) < 0)
        die("waitpid");
    if (signalled ? !WIFSIGNALED(status) : status != 0) {
        errno = ECHILD;
        die("a child failed");
    }
}

static int64_t sleeps(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_nvcsw;
}

/* The sum of the numbers on the lines of /proc/PID/NAME that begin so. */
static int64_t told(pid_t pid, const char *name, const char *begin)
{
    char path[64], line[256];
    int64_t sum = 0;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    FILE *lines = fopen(path, "re");
    if (lines == NULL)
        die(path);
    while (fgets(line, sizeof line, lines))
        if (strncmp(line, begin, strlen(begin)) == 0 && strchr(line, ':'))
            sum += atoll(strchr(line, ':') + 1);
    fclose(lines);
    return sum;
}

/* -- uncontended --------------------------------------------------------------------------------------------------- */

static void uncontended(int64_t slice_ns, int64_t warm_up)
{
    static int64_t samples[MAX_SAMPLES];
    size_t count = 0;

    for (int64_t i = 0; i < warm_up; i++) {
        acquire();
        release();
    }
    int64_t begin = now_ns(), stop = begin + slice_ns;
    while (begin < stop && count < MAX_SAMPLES) {
        begin = now_ns();
        for (int i = 0; i < BATCH; i++) {
            acquire();
            release();
        }
        samples[count++] = (now_ns() - begin) / BATCH;
    }
    put(samples, count);
}

/* -- handoff: as turns.py ------------------------------------------------------------------------------------------ */

enum { READY, ANNOUNCED, DONE, RELEASED, LATENCIES };

static void take_turns(int role, int cpu, int count, char **pauses)
{
    if (cpu >= 0) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) < 0)
            die("sched_setaffinity");
    }
    if (role == 0) {
        acquire();
        slots[READY] = 1;
    }
    wait_for(READY, 1);
    for (int turn = 0; turn < count; turn++) {
        if (turn % 2 == role) {
            wait_for(ANNOUNCED, turn + 1);
            sleep_ns(atoll(pauses[turn]));
            slots[RELEASED] = now_ns();
            release();
            wait_for(DONE, turn + 1);
        } else {
            slots[ANNOUNCED] = turn + 1;
            acquire();
            slots[LATENCIES + turn] = now_ns() - slots[RELEASED];
            slots[DONE] = turn + 1;
        }
    }
    if (count % 2 == role)
        release();
    _exit(0);
}

static void handoff(char **cpus, int warm_up, int count, char **pauses)
{
    pid_t pair[2];

    for (int role = 0; role < 2; role++)
        if ((pair[role] = forked()) == 0)
            take_turns(role, atoi(cpus[role]), count, pauses);
    for (int role = 0; role < 2; role++)
        reap(pair[role], 0);
    put((int64_t *)slots + LATENCIES + warm_up, count - warm_up);
}

/* -- crash: as crash.py -------------------------------------------------------------------------------------------- */

enum { HELD, GO, WAITING, ACQUIRED, GONE, KILLED };

static void wait_in_turn(int count)
{
    for (int turn = 1; turn <= count; turn++) {
        wait_for(GO, turn);
        slots[WAITING] = turn;
        acquire();
        slots[ACQUIRED] = now_ns();
        release();
        slots[GONE] = turn;
    }
    _exit(0);
}

static void crash(int count, char **pauses)
{
    pid_t waiter = forked();
    if (waiter == 0)
        wait_in_turn(count);
    for (int turn = 1; turn <= count; turn++) {
        pid_t holder = forked();
        if (holder == 0) {
            acquire();
            slots[HELD] = turn;
            pause();
        }
        wait_for(HELD, turn);
        slots[GO] = turn;
        wait_for(WAITING, turn);
        sleep_ns(atoll(pauses[turn - 1]));
        int64_t killed = now_ns();
        kill(holder, SIGKILL);
        reap(holder, 1);
        wait_for(GONE, turn);
        slots[KILLED + turn] = slots[ACQUIRED] - killed;
    }
    reap(waiter, 0);
    /* The waiter's first wait is not counted. */
    put((int64_t *)slots + KILLED + 2, count - 1);
}

/* -- fairness: as fairness.py -------------------------------------------------------------------------------------- */

enum { INSIDE, COUNT, START, CONTENDERS };

/* What one process did; of its waits every `stride`th, doubled whenever there is no room for more. */
struct contender {
    int64_t acquired, waits, waited, longest, slept, stride, kept, sample[KEPT];
};

static void inside(void)
{
    int64_t me = getpid();
    errno = EBUSY;
    if (atomic_load_explicit(&slots[INSIDE], memory_order_relaxed) != 0)
        die("two processes held the lock at once");
    atomic_store_explicit(&slots[INSIDE], me, memory_order_relaxed);
    atomic_store_explicit(&slots[COUNT], slots[COUNT] + 1, memory_order_relaxed);
    if (atomic_load_explicit(&slots[INSIDE], memory_order_relaxed) != me)
        die("two processes held the lock at once");
    atomic_store_explicit(&slots[INSIDE], 0, memory_order_relaxed);
}

static void keep(struct contender *mine, int64_t wait)
{
    if (mine->waits % mine->stride == 0) {
        if (mine->kept == KEPT) {
            for (mine->kept = 0; mine->kept < KEPT / 2; mine->kept++)
                mine->sample[mine->kept] = mine->sample[2 * mine->kept];
            mine->stride *= 2;
        }
        mine->sample[mine->kept++] = wait;
    }
    mine->waits++;
    mine->waited += wait;
    if (wait > mine->longest)
        mine->longest = wait;
}

static void contend(struct contender *mine, int number, int64_t ns, int64_t warm_up_ns)
{
    mine->stride = 1;
    slots[CONTENDERS + number] = 1;
    wait_for(START, 1);
    sleep_ns(slots[START] - now_ns());
    int64_t from = slots[START] + warm_up_ns, stop = from + ns;
    while (now_ns() < from) {
        acquire();
        inside();
        atomic_fetch_sub(&slots[COUNT], 1);
        release();
    }
    int64_t before = sleeps();
    for (int64_t begin; (begin = now_ns()) < stop;) {
        acquire();
        int64_t end = now_ns();
        keep(mine, (end < stop ? end : stop) - begin);
        if (end < stop) {
            inside();
            mine->acquired++;
        }
        release();
    }
    mine->slept = sleeps() - before;
    _exit(0);
}

static void fairness(int processes, int64_t ns, int64_t warm_up_ns)
{
    struct contender *all = shared(processes * sizeof *all, -1);
    pid_t pids[processes];
    int64_t sum = 0, stride = 1;

    for (int i = 0; i < processes; i++)
        if ((pids[i] = forked()) == 0)
            contend(&all[i], i, ns, warm_up_ns);
    for (int i = 0; i < processes; i++)
        wait_for(CONTENDERS + i, 1);
    slots[START] = now_ns() + 50000000;
    for (int i = 0; i < processes; i++)
        reap(pids[i], 0);
    for (int i = 0; i < processes; i++) {
        put(&all[i].acquired, 5);
        sum += all[i].acquired;
        stride = all[i].stride > stride ? all[i].stride : stride;
    }
    if (sum != slots[COUNT]) {
        errno = EILSEQ;
        die("the counter inside");
    }
    /* The same share of the waits of each, or the percentiles would not be those of all waits. */
    for (int i = 0; i < processes; i++)
        for (int64_t at = 0; at < all[i].kept; at += stride / all[i].stride)
            put(&all[i].sample[at], 1);
}

/* -- waiters: as passing.py ---------------------------------------------------------------------------------------- */

enum { HOLDS, MAY, FREED, CAME, MOMENTS };

static int64_t total_sleeps(const pid_t *pids, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += told(pids[i], "status", "voluntary_ctxt_switches:");
    return sum;
}

static void wait_once(int gate, int arrived)
{
    char byte;
    if (read(gate, &byte, 1) != 1)
        die("read");
    slots[arrived] = 1;
    acquire();
    int64_t place = slots[CAME];
    slots[MOMENTS + place] = now_ns();
    slots[CAME] = place + 1;
    release();
    pause();
}

static void hold(void)
{
    acquire();
    slots[HOLDS] = 1;
    wait_for(MAY, 1);
    slots[FREED] = now_ns();
    release();
    pause();
}

static int by_size(const void *one, const void *other)
{
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

static void waiters(int many, int64_t window_ns, int64_t limit_ns)
{
    int gate[2], weighed = many < WEIGHED ? many : WEIGHED, arrived = MOMENTS + many;
    pid_t pids[many], holder = forked();
    int64_t bytes[WEIGHED], found[3];

    if (holder == 0)
        hold();
    wait_for(HOLDS, 1);
    if (pipe(gate) < 0)
        die("pipe");
    for (int i = 0; i < many; i++)
        if ((pids[i] = forked()) == 0)
            wait_once(gate[0], arrived + i);
    for (int i = 0; i < weighed; i++)
        bytes[i] = told(pids[i], "smaps_rollup", "Private_");
    for (int i = 0; i < many; i++)
        if (write(gate[1], "", 1) != 1)
            die("write");
    for (int i = 0; i < many; i++)
        wait_for(arrived + i, 1);
    sleep_ns(SETTLE_NS);
    int64_t begin = now_ns(), earlier = total_sleeps(pids, many);
    sleep_ns(window_ns);
    int64_t elapsed = now_ns() - begin, before = total_sleeps(pids, many);
    for (int i = 0; i < weighed; i++)
        bytes[i] = 1024 * (told(pids[i], "smaps_rollup", "Private_") - bytes[i]);
    qsort(bytes, weighed, sizeof bytes[0], by_size);
    slots[MAY] = 1;
    int64_t stop = now_ns() + limit_ns;
    while (slots[CAME] < many && now_ns() < stop)
        sleep_ns(10000000);
    sleep_ns(50000000); /* the last ones are on their way back to sleep */
    /* Everyone sleeps again, so each sleep since then is one wake-up. */
    found[0] = total_sleeps(pids, many) - before;
    found[1] = (before - earlier) * 1000000000 / elapsed;
    found[2] = bytes[weighed / 2];
    put(found, 3);
    for (int64_t i = 0; i < slots[CAME]; i++)
        slots[MOMENTS + i] -= slots[FREED];
    put((int64_t *)slots + MOMENTS, slots[CAME]);
    for (int i = 0; i < many; i++)
        kill(pids[i], SIGKILL);
    kill(holder, SIGKILL);
    while (wait(NULL) > 0)
        ;
}

int main(int argc, char **argv)
{
    char **words = argv + 4;
    int count = argc - 4;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (count < 1) {
        fprintf(stderr, "usage: limits mutex|flock PATH uncontended|handoff|crash|fairness|waiters ...\n");
        return 2;
    }
    is_mutex = strcmp(argv[1], "mutex") == 0;
    lock_path = argv[2];
    slots = shared(SLOTS * sizeof slots[0], -1);
    make_lock();
    if (strcmp(argv[3], "uncontended") == 0 && count == 2)
        uncontended(atoll(words[0]), atoll(words[1]));
    else if (strcmp(argv[3], "handoff") == 0 && count > 3)
        handoff(words, atoi(words[2]), count - 3, words + 3);
    else if (strcmp(argv[3], "crash") == 0 && count > 1)
        crash(count, words);
    else if (strcmp(argv[3], "fairness") == 0 && count == 3)
        fairness(atoi(words[0]), atoll(words[1]), atoll(words[2]));
    else if (strcmp(argv[3], "waiters") == 0 && count == 3)
        waiters(atoi(words[0]), atoll(words[1]), atoll(words[2]));
    else {
        errno = EINVAL;
        die(argv[3]);
    }
    return 0;
}
