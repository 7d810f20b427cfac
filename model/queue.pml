/* The queue of FIFOs (src/holdfast/engines/file/queue.py), with the lock files that it leads to.
 *
 * Each guarded command below is one system call of one contender, or a few that nothing can tell apart; anything may
 * happen between two of them. What a contender would do by a timer alone (the re-check, polling) is left out, but where a
 * ticket ahead is idle (Q6), or has been removed by somebody else: a waiter that only a re-check would save is found
 * asleep at the end. Taking over and publishing are one step here; lock.pml has their parts.
 *
 * -D N=…        contenders, 1 to N, which begin in this order
 * -D ROUNDS=…   acquisitions of each
 * -D SLOTS=…    lock files: more than one is a semaphore (Q7)
 * -D CRASHES, STOPS, DEADLINES, BREAKS: how many of them there may be at most, at any step
 * -D HELD       the lock is held by another process at first, which releases it or dies
 * -D STAYS      the first contender keeps its lock as long as any other may go on
 * -D LOCALS=…     a set: contenders that are threads of one process, with one queue among them
 * -D SWEEPS     a neighbour may take a name in the making for a leftover, although its maker lives
 * -D FORGED     a ticket stands in front of all others, which is not used, not removable, or not to be opened
 * -D WIPED      the queue is removed with all its tickets at any step, or made impossible to open
 * -D HASTY      a living contender may be slower than the patience of the others
 * -D NO_…, …    mutants: each takes away what an invariant rests on
 */

#ifndef N
#define N 3
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef SLOTS
#define SLOTS 1
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef STOPS
#define STOPS 0
#endif
#ifndef DEADLINES
#define DEADLINES 0
#endif
#ifndef SWEEPS
#define SWEEPS 0
#endif
#ifdef WIPED
#define WIPES 2
#else
#define WIPES 0
#endif
#ifndef BREAKS
#define BREAKS 0
#endif

#ifndef LOCALS
#define LOCALS 0
#endif
#ifndef STAYER
#define STAYER 0
#endif
#ifndef NEVER_REFUSED
#define NEVER_REFUSED false   /* the ticket ahead is opened for reading, too: no ENXIO, no POLLERR */
#endif
#ifndef NO_NEXT
#define NO_NEXT false         /* a thread that leaves makes no ticket for the next */
#endif
#ifndef NO_HANDSHAKE
#define NO_HANDSHAKE false    /* it makes it even for one that has given up meanwhile */
#endif
#ifndef NO_SIGNAL
#define NO_SIGNAL false       /* it does not wake the next */
#endif
#ifndef STAYS_IN_LINE
#define STAYS_IN_LINE false   /* it leaves the line only afterwards */
#endif
#ifndef ARMS_LATE
#define ARMS_LATE false       /* the watch is armed after the look */
#endif
#ifndef NOT_SOON
#define NOT_SOON false        /* no second look soon after a close event */
#endif

#define LAST (N + 1)    /* the contender that comes when all others have ended: it must get in, and nothing is left */
#define OUTSIDE (N + 2) /* who holds the lock at first (HELD) */
#define GONE 255
#define NOBODY 254

/* Sets of contenders, of their tickets or of slots are bit masks. Ticket 0 is the forged one. */
#define BIT(p) (1 << (p))
#define IN(set, p) ((set) & BIT(p))
#define ADD(set, p) set = (set) | BIT(p)
#define DEL(set, p) set = (set) & ~BIT(p)

mtype = {
    Idle, Fast, Publish0, Open, Make, Fifo, OpenFifo, Rename, List, OpenAhead, Sweep, Behind, Pass,
    Join, LocalBehind, Leave, NextFifo, NextRename, HandOver, NextClose, GivenUp,
    Arm, LookFirst, PublishFirst, TakeOver, First, Holding, CloseFifo, Withdraw, RemoveDirectory, Dead
};

mtype st[LAST + 1];      /* where each contender is */
byte round[LAST + 1];

/* The lock files. */
byte lock[SLOTS];        /* whose record is at the path; 0: nothing is there */
byte guarded;            /* slots whose file is guarded */
byte closing;            /* slots whose holder died: the close event has come, the guard is about to be dropped (WF2) */
byte inside[SLOTS];      /* who is in the critical section */
byte slot[LAST + 1];     /* the slot that a contender tries, or holds */

/* The queue. What is removed with it leaves the sets of names. */
bool dir;                /* it exists */
bool blocked;            /* something else stands at its path, which cannot be opened (WIPED) */
byte opened;             /* contenders whose open directory is still the one at the path */
byte fresh;              /* names in the making, `.new` */
byte placed;             /* tickets */
byte reader;             /* FIFOs that their owner has open */
byte nudged;             /* FIFOs with a byte in them */
byte without;            /* contenders that cannot queue, and do without (Q1) */
byte older[LAST + 1];    /* the order of arrival: who arrived before each contender */

/* The queue inside a process (LOCALS). */
byte line;               /* who stands in it */
byte signalled;
byte making;             /* for whom another thread makes a ticket */
byte next[LAST + 1];     /* for whom a thread makes a ticket */

/* Each contender's view. */
byte candidate[LAST + 1]; /* the ticket ahead that it has read in the list */
byte ahead[LAST + 1];    /* the ticket ahead that it has open for writing, and polls */
byte hung;               /* whose ticket ahead has no reader any more: POLLERR */
byte passed[LAST + 1];   /* tickets that it ignores (Q6) */
byte over[LAST + 1];     /* tickets ahead that it has found dead in this list, and cannot remove */
byte watching[SLOTS];    /* who watches the lock file */
byte event;              /* who has an event of a lock file to read */
byte soon;               /* who looks again soon, as a guard may outlive its close event (WF2) */

/* What happens to them. */
byte dead, stopped, late, broken;
byte crashes = CRASHES, stops = STOPS, deadlines = DEADLINES, breaks = BREAKS, sweeps = SWEEPS, wipes = WIPES;
byte victim;             /* whose lock was broken, and its waiters do not know yet */
bool nudging;
bool disturbed;          /* something died, or was forged: the next contender may have to clean up */
byte phase;              /* 0; 1: whoever was stopped goes on; 2: the last one comes */

byte waits;              /* ghost: who has had its ticket in place, and waits on */
byte before[LAST + 1];   /* ghost: tickets that were in place when a contender began, and are to be served before it */
hidden byte x, y, z;

#ifdef HASTY
#define IDLERS 255
#else
#define IDLERS (stopped | BIT(0))
#endif
#define RUNS(p) (!IN(dead | stopped, p))
#define AHEAD(p) (placed & older[p] & ~passed[p])
#define IS_FIRST_OF(set, q) (IN(set, q) && !(older[q] & (set)))
#define IDLE_IN(set, q) (IN(IDLERS, q) && IS_FIRST_OF(set, q))
/* Whether the first ticket ahead of p is idle, which takes a timer to find out (Q6). */
#define FIRST_IS_IDLE(p) (IDLE_IN(AHEAD(p), 0) || IDLE_IN(AHEAD(p), 1) || \
    IDLE_IN(AHEAD(p), 2) || IDLE_IN(AHEAD(p), 3) || (N > 3 && IDLE_IN(AHEAD(p), 4)))
#define CAN_BE_HAD(s) (lock[s] == 0 || !IN(guarded, s))
#if SLOTS == 1
#define ARMED(p) IN(watching[0], p)
#define IS_FREE CAN_BE_HAD(0)
#else
#define ARMED(p) IN(watching[0] & watching[1], p)
#define IS_FREE (CAN_BE_HAD(0) || CAN_BE_HAD(1))
#endif

inline close_fifo(q) {
    DEL(reader, q); DEL(nudged, q);
    x = 1;
    do
    :: x <= LAST -> if :: ahead[x] == q -> ADD(hung, x) :: else fi; x++
    :: else -> break
    od;
    x = 0
}

inline forget_name(q) {   /* a name is never used again */
    DEL(placed, q); DEL(fresh, q);
    x = 1;
    do
    :: x <= LAST ->
        if :: candidate[x] == q -> candidate[x] = GONE :: else fi;
        DEL(passed[x], q); DEL(over[x], q);
        x++
    :: else -> break
    od;
    x = 0
}

inline no_longer_waits(q) {
    DEL(waits, q);
    x = 1; do :: x <= LAST -> DEL(before[x], q); x++ :: else -> break od;
    x = 0
}

inline close_ahead(p) { ahead[p] = NOBODY; DEL(hung, p) }

#if LOCALS
#define IN_QUEUE(p) (IN(LOCALS, p) -> Join : Open)
#define LEAVES(p) (IN(LOCALS, p) -> Leave : CloseFifo)
#else
#define IN_QUEUE(p) Open
#define LEAVES(p) CloseFifo
#endif

inline first_but(p) { y = 1; do :: y <= N && !IS_FIRST_OF(line & ~BIT(p), y) -> y++ :: else -> break od }

inline rest(p) {   /* no longer first, or done: the watches go */
    x = 0; do :: x < SLOTS -> DEL(watching[x], p); x++ :: else -> break od;
    DEL(event, p); DEL(soon, p)
}

inline arm(p, s) {
    ADD(watching[s], p);
    if :: IN(closing, s) && !NOT_SOON -> ADD(soon, p) :: else fi   /* WF2: the event may have come before */
}

inline tell_watchers(s) { event = event | watching[s] }

inline enter(p, s) {
    assert(inside[s] == 0);                                     /* exclusion */
#if !defined(HASTY) && !defined(WIPED)
    assert(before[p] == 0);                                     /* first come, first served */
#endif
    lock[s] = p; ADD(guarded, s); DEL(closing, s); inside[s] = p; slot[p] = s;
    rest(p); before[p] = 0; no_longer_waits(p); DEL(late, p);
    st[p] = Holding
}

#define LEFT(p) (p == LAST && phase == 2 && round[p] == 0) || (p != LAST && round[p] < ROUNDS)

inline end_round(p) {
    x = 1; do :: x <= LAST -> DEL(older[x], p); x++ :: else -> break od;
    older[p] = 0; before[p] = 0; candidate[p] = NOBODY; close_ahead(p); over[p] = 0;
    DEL(opened, p); DEL(without, p); DEL(late, p); DEL(broken, p); DEL(signalled, p); slot[p] = 0;
    round[p]++; st[p] = Idle;
    if :: !(LEFT(p)) -> passed[p] = 0 :: else fi
}

/* Contenders are alike, so they may be numbered by their first arrival. */
#define MAY_BEGIN(p) (LEFT(p)) && (p == LAST || p == 1 || (!IN(LOCALS, p - 1) != !IN(LOCALS, p)) || round[p - 1] > 0 || st[p - 1] != Idle)

proctype contender(byte p) {
    do
    :: d_step { RUNS(p) && st[p] == Idle && MAY_BEGIN(p) ->
        older[p] = BIT(0); before[p] = 0;
        x = 1;
        do
        :: x <= LAST ->
            if :: x != p && (st[x] != Idle) -> ADD(older[p], x) :: else fi;
            if :: IN(waits & placed & ~passed[p], x) -> ADD(before[p], x) :: else fi;
            if :: IN(line, x) && st[x] == LocalBehind && (line & placed & older[x]) -> ADD(before[p], x) :: else fi;
            x++
        :: else -> break
        od;
        st[p] = Fast
      }

    /* Q6: a process remembers for a while whom it has passed. */
    :: d_step { RUNS(p) && st[p] == Idle && passed[p] -> passed[p] = 0 }

    /* Q5: newcomers queue whenever there is a queue. */
    :: d_step { RUNS(p) && st[p] == Fast ->
#ifdef BARGES
        st[p] = Publish0
#else
        if :: dir || blocked || (IN(LOCALS, p) && line) -> st[p] = IN_QUEUE(p) :: else -> st[p] = Publish0 fi
#endif
      }
    :: d_step { RUNS(p) && st[p] == Publish0 ->
        x = 0; y = GONE;
        do
        :: x < SLOTS -> if :: y == GONE && CAN_BE_HAD(x) -> y = x :: else fi; x++
        :: else -> break
        od;
        if :: y != GONE -> enter(p, y) :: else -> st[p] = IN_QUEUE(p) fi
      }

    /* Q2, Q8: the directory, a FIFO under another name, its reader, its name. */
    :: d_step { RUNS(p) && st[p] == Open ->
        if
        :: blocked -> ADD(without, p); st[p] = Arm
        :: !blocked && dir -> ADD(opened, p); st[p] = Fifo
        :: !blocked && !dir -> st[p] = Make
        fi
      }
    :: d_step { RUNS(p) && st[p] == Make -> if :: !blocked -> dir = true :: else fi; st[p] = Open }
    :: d_step { RUNS(p) && st[p] == Fifo ->
        if
        :: IN(opened, p) ->
#ifdef NO_RENAME
            ADD(placed, p);
#else
            ADD(fresh, p);
#endif
            st[p] = OpenFifo
        :: else ->   /* ENOENT: it was removed as empty */
#ifdef NO_NEW_START
            ADD(without, p); st[p] = Arm
#else
            st[p] = Open
#endif
        fi
      }
    :: d_step { RUNS(p) && st[p] == OpenFifo ->
        if
        :: IN(fresh | placed, p) -> ADD(reader, p); st[p] = Rename
        :: else -> st[p] = Open   /* a neighbour swept it */
        fi
      }
    :: d_step { RUNS(p) && st[p] == Rename ->
        if
        :: IN(fresh | placed, p) -> DEL(fresh, p); ADD(placed, p); ADD(waits, p); st[p] = List
        :: else -> close_fifo(p); st[p] = Open
        fi
      }

#if LOCALS
    /* Q4: the waiters of a process stand in one line, by arrival, and the first takes a ticket. */
    :: d_step { RUNS(p) && st[p] == Join ->
        ADD(line, p);
        if :: line & older[p] -> st[p] = LocalBehind :: else -> st[p] = Open fi
      }
    :: d_step { RUNS(p) && st[p] == LocalBehind && IN(signalled, p) ->
        DEL(signalled, p);
        if
        :: (line & older[p]) || IN(making, p)   /* its maker wakes it again */
        :: !(line & older[p]) && !IN(making, p) ->
            if :: IN(placed, p) -> st[p] = List :: else -> st[p] = Open fi
        fi
      }
    :: d_step { RUNS(p) && st[p] == LocalBehind && IN(late, p) ->
        DEL(line, p); no_longer_waits(p);
        if
        :: IN(making, p) -> st[p] = GivenUp   /* its maker will find that nobody wants the ticket */
        :: else -> st[p] = CloseFifo
        fi
      }
    :: d_step { RUNS(p) && st[p] == GivenUp && !IN(making | placed | fresh | reader, p) -> end_round(p) }
    /* It leaves the line, and makes its successor's ticket before it gives up its own. */
    :: d_step { RUNS(p) && st[p] == Leave ->
        if :: !STAYS_IN_LINE -> DEL(line, p) :: else fi;
        no_longer_waits(p); close_ahead(p);
        first_but(p);
        if
        :: y <= N && st[y] == LocalBehind && !IN(placed | making, y) && !NO_NEXT -> next[p] = y; ADD(making, y); st[p] = NextFifo
        :: else -> st[p] = CloseFifo
        fi
      }
    :: d_step { RUNS(p) && st[p] == NextFifo -> ADD(fresh, next[p]); ADD(reader, next[p]); st[p] = NextRename }
    :: d_step { RUNS(p) && st[p] == NextRename ->
        if
        :: IN(fresh, next[p]) -> DEL(fresh, next[p]); ADD(placed, next[p]); st[p] = HandOver
        :: else -> y = next[p]; close_fifo(y); st[p] = NextFifo
        fi
      }
    :: d_step { RUNS(p) && st[p] == HandOver ->
        y = next[p]; DEL(making, y);
        if
        :: IN(line, y) -> ADD(waits, y); ADD(opened, y); next[p] = 0; st[p] = CloseFifo
        :: !IN(line, y) && !NO_HANDSHAKE -> forget_name(y); st[p] = NextClose   /* it has given up meanwhile */
        :: !IN(line, y) && NO_HANDSHAKE -> next[p] = 0; st[p] = CloseFifo
        fi
      }
    :: d_step { RUNS(p) && st[p] == NextClose -> y = next[p]; next[p] = 0; close_fifo(y); st[p] = Leave }
#endif

    /* Q3: who is ahead? */
    :: d_step { RUNS(p) && st[p] == List ->
        close_ahead(p);
        candidate[p] = NOBODY;
#ifndef NO_SWEEP
        fresh = fresh & ~dead;   /* leftovers of makers that are gone */
#endif
        if
        :: (line & older[p]) && IN(line, p) -> rest(p); st[p] = LocalBehind   /* one that had arrived before has joined the line */
        :: IN(without, p) -> st[p] = Arm
        :: !IN(without, p) && !IN(placed, p) -> rest(p); close_fifo(p); over[p] = 0; DEL(opened, p); st[p] = Open
        :: else ->
            y = AHEAD(p) & ~over[p]; z = 0;
            do
            :: z <= LAST -> if :: IN(y, z) && !(y & ~older[z] & ~BIT(z)) -> candidate[p] = z :: else fi; z++
            :: else -> break
            od;
            if
            :: candidate[p] == NOBODY -> over[p] = 0; st[p] = Arm
            :: else -> rest(p); st[p] = OpenAhead
            fi
        fi
      }
    :: d_step { RUNS(p) && st[p] == OpenAhead ->
        if
        :: candidate[p] == GONE -> candidate[p] = NOBODY; st[p] = List
        :: candidate[p] != GONE && (IN(reader, candidate[p]) || NEVER_REFUSED) -> ahead[p] = candidate[p]; candidate[p] = NOBODY; over[p] = 0; st[p] = Behind
        :: else -> st[p] = Sweep   /* ENXIO: its owner is gone */
        fi
      }
    :: d_step { RUNS(p) && st[p] == Sweep ->
        if
        :: candidate[p] == GONE -> skip
        :: candidate[p] == 0 -> ADD(over[p], 0)   /* forged, and not ours to remove */
        :: else ->
            y = candidate[p];
            assert(!IN(reader, y));   /* Q2: no living waiter's ticket is removed */
            forget_name(y)
        fi;
        candidate[p] = NOBODY;
#ifdef ENXIO_IS_FIRST
        st[p] = Arm
#else
        st[p] = List
#endif
      }

    :: d_step { RUNS(p) && st[p] == Behind && IN(hung, p) && !NEVER_REFUSED ->
#if STOPS == 0 && !defined(FORGED) && !defined(WIPED) && !defined(HASTY) && BREAKS == 0
        /* Q4: a release wakes its successor when the lock is free, and not before. */
        x = 0; do :: x < SLOTS -> assert(SLOTS > 1 || lock[x] == 0 || lock[x] != ahead[p] || IN(dead, lock[x])); x++ :: else -> break od;
#endif
#ifdef NO_LIST
        close_ahead(p); st[p] = Arm
#else
        st[p] = List
#endif
      }
    /* R4: a lock was broken; the byte is read before the list. */
    :: d_step { RUNS(p) && st[p] == Behind && IN(nudged, p) ->
        DEL(nudged, p);
        st[p] = List
      }
    :: d_step { RUNS(p) && st[p] == Behind && IN(late, p) -> st[p] = LEAVES(p) }
    /* Q6: patience with a free lock and an idle first ticket. */
#ifndef NO_PATIENCE
    :: d_step { RUNS(p) && st[p] == Behind && IS_FREE && FIRST_IS_IDLE(p) -> st[p] = Pass }
#endif
    /* The re-check: the forged ticket is gone by name, and still open. */
    :: d_step { RUNS(p) && st[p] == Behind && IS_FREE && ahead[p] == 0 && !IN(placed, 0) -> st[p] = List }
    :: d_step { RUNS(p) && st[p] == Pass ->
        y = AHEAD(p);
        before[p] = before[p] & ~y;   /* the exception that Q6 states */
#ifdef REMOVES_IDLE
        z = 1;
        do
        :: z <= LAST ->
            if :: IN(y, z) -> assert(!IN(reader, z)); forget_name(z) :: else fi;
            z++
        :: else -> break
        od;
#endif
        passed[p] = passed[p] | y;
        st[p] = List
      }

    /* First: the lock files themselves. WF1: the watch is armed before the look. */
    :: d_step { RUNS(p) && st[p] == Arm ->
        close_ahead(p);
        if :: IN(event, p) && closing && !NOT_SOON -> ADD(soon, p) :: else fi;
        DEL(event, p); x = 0;
        do
        :: x < SLOTS ->
            if
            :: lock[x] != 0 && !IN(watching[x], p) ->
                if :: !ARMS_LATE -> arm(p, x) :: else fi
            :: else
            fi;
            x++
        :: else -> break
        od;
        st[p] = LookFirst
      }
    :: d_step { RUNS(p) && st[p] == LookFirst ->
        x = 0; y = GONE;
        do
        :: x < SLOTS -> if :: y == GONE && CAN_BE_HAD(x) -> y = x :: else fi; x++
        :: else -> break
        od;
        if
        :: y == GONE && (ARMED(p) || ARMS_LATE) -> assert(IN(placed, p) || wipes < WIPES); st[p] = First   /* Q2: who waits has a ticket */
        :: y == GONE && !(ARMED(p) || ARMS_LATE) -> st[p] = Arm   /* it was made since: look once more */
        :: y != GONE && lock[y] == 0 -> slot[p] = y; st[p] = PublishFirst
        :: else -> slot[p] = y; st[p] = TakeOver
        fi
      }
    :: d_step { RUNS(p) && st[p] == PublishFirst ->
        if
#ifdef TURN_IS_LOCK
        :: true -> y = slot[p]; enter(p, y)   /* by a rename, say, which replaces */
#else
        :: lock[slot[p]] == 0 -> y = slot[p]; enter(p, y)
        :: else -> slot[p] = 0; st[p] = List   /* EEXIST */
#endif
        fi
      }
    :: d_step { RUNS(p) && st[p] == TakeOver ->
        if
        :: lock[slot[p]] != 0 && !IN(guarded, slot[p]) -> y = slot[p]; enter(p, y)
        :: else -> slot[p] = 0; st[p] = List
        fi
      }
#if ARMS_LATE
    :: d_step { RUNS(p) && st[p] == First && !IN(event, p) && !ARMED(p) && lock[0] != 0 -> arm(p, 0) }
    :: d_step { RUNS(p) && st[p] == First && !IN(event, p) && !ARMED(p) && lock[0] == 0 -> st[p] = List }
#endif
    :: d_step { RUNS(p) && st[p] == First && IN(event, p) ->
        DEL(event, p);
        if :: closing && !NOT_SOON -> ADD(soon, p) :: else fi;
        st[p] = List
      }
    :: d_step { RUNS(p) && st[p] == First && IN(soon, p) && !closing -> DEL(soon, p); st[p] = List }
    :: d_step { RUNS(p) && st[p] == First && IN(late, p) -> rest(p); st[p] = LEAVES(p) }

    /* Holding, and the release: the lock file first, then the place (Q4). */
    :: d_step { RUNS(p) && st[p] == Holding && (p != STAYER || phase > 0) ->
        y = slot[p];
        if
        :: !IN(broken, p) && lock[y] == p ->
            lock[y] = 0; DEL(guarded, y); inside[y] = 0;
            tell_watchers(y); watching[y] = 0
        :: else   /* it was broken: another's by now, or nobody's */
        fi;
        st[p] = LEAVES(p)
      }
#if SLOTS > 1 && !defined(KEEPS_PLACE) || defined(LEAVES_EARLY)
    /* Q7: one of several slots: the place is left at the acquisition. */
    :: d_step { RUNS(p) && st[p] == Holding && IN(placed, p) -> forget_name(p) }
    :: d_step { RUNS(p) && st[p] == Holding && !IN(placed, p) && IN(reader, p) -> close_fifo(p) }
#endif
    :: d_step { RUNS(p) && st[p] == CloseFifo ->
        no_longer_waits(p); close_ahead(p);
#ifndef NO_CLOSE
        close_fifo(p);
#endif
        st[p] = Withdraw
      }
    :: d_step { RUNS(p) && st[p] == Withdraw ->
        if :: IN(placed, p) -> forget_name(p) :: else fi;
#if LOCALS
        if
        :: IN(LOCALS, p) && !NO_SIGNAL ->
            DEL(line, p);
            first_but(p);
            if :: y <= N && st[y] == LocalBehind -> ADD(signalled, y) :: else fi
        :: else
        fi;
#endif
        st[p] = RemoveDirectory
      }
    :: d_step { RUNS(p) && st[p] == RemoveDirectory ->
#ifndef NO_RMDIR
        if :: dir && !(placed | fresh) -> dir = false; opened = 0 :: else fi;
#endif
        end_round(p)
      }
    od
}

/* What the kernel does for the dead: it closes their descriptors, in any order. */
proctype kernel() {
    byte p = 1;
    do
    :: d_step { dead & reader ->
        p = 1; do :: !IN(dead & reader, p) -> p++ :: else -> break od;
        close_fifo(p); p = 1
      }
    :: d_step { lock[0] != 0 && IN(guarded, 0) && !IN(closing, 0) && IN(dead, lock[0]) -> ADD(closing, 0); tell_watchers(0) }
    :: d_step { IN(closing, 0) -> DEL(closing, 0); DEL(guarded, 0) }
#if SLOTS > 1
    :: d_step { lock[1] != 0 && IN(guarded, 1) && !IN(closing, 1) && IN(dead, lock[1]) -> ADD(closing, 1); tell_watchers(1) }
    :: d_step { IN(closing, 1) -> DEL(closing, 1); DEL(guarded, 1) }
#endif
    od
}

inline die(p) {
    ADD(dead, p); st[p] = Dead; disturbed = true;
    x = 0; do :: x < SLOTS -> if :: inside[x] == p -> inside[x] = 0 :: else fi; x++ :: else -> break od;
    rest(p); close_ahead(p); candidate[p] = NOBODY; over[p] = 0; passed[p] = 0; before[p] = 0; slot[p] = 0;
    DEL(opened, p); DEL(without, p); DEL(late, p); DEL(broken, p); DEL(nudged, p);
    DEL(line, p); DEL(signalled, p); DEL(making, p); next[p] = 0;
    no_longer_waits(p)
}

inline die_together(p) {
    if
    :: IN(LOCALS, p) -> z = 1; do :: z <= N -> if :: IN(LOCALS, z) && st[z] != Dead -> die(z) :: else fi; z++ :: else -> break od
    :: else -> die(p)
    fi
}

#define ALIVE(p) (st[p] != Idle && st[p] != Dead)
#define MAY_HAPPEN_TO(p) \
    :: d_step { crashes > 0 && phase == 0 && ALIVE(p) -> crashes--; die_together(p) } \
    :: d_step { stops > 0 && phase == 0 && ALIVE(p) && RUNS(p) -> stops--; stopped = stopped | (IN(LOCALS, p) -> LOCALS : BIT(p)) } \
    :: d_step { phase == 0 && IN(stopped, p) -> stopped = stopped & ~(IN(LOCALS, p) -> LOCALS : BIT(p)) } \
    :: d_step { deadlines > 0 && phase == 0 && !IN(late, p) && (st[p] == Behind || st[p] == First || st[p] == LocalBehind) -> deadlines--; ADD(late, p) } \
    :: d_step { sweeps > 0 && IN(fresh, p) -> sweeps--; forget_name(p) }

inline wipe() {
    z = 0; do :: z <= LAST -> forget_name(z); z++ :: else -> break od;
    dir = false; blocked = false; opened = 0; disturbed = true
}

/* Whatever may happen, may also not happen: then this ends. */
proctype environment() {
    do
    MAY_HAPPEN_TO(1)
    MAY_HAPPEN_TO(2)
#if N > 2
    MAY_HAPPEN_TO(3)
#endif
#if N > 3
    MAY_HAPPEN_TO(4)
#endif
#ifdef FORGED
    :: d_step { phase == 0 && !IN(placed, 0) && !disturbed && !blocked -> dir = true; ADD(placed, 0); disturbed = true }   /* dead, not removable */
    :: d_step { phase == 0 && !IN(placed, 0) && !disturbed && !blocked -> dir = true; ADD(placed, 0); ADD(reader, 0); disturbed = true }   /* idle, or not to be opened */
    :: d_step { IN(reader, 0) -> close_fifo(0) }
    :: d_step { IN(placed, 0) -> forget_name(0) }
#endif
#ifdef WIPED
    :: d_step { wipes > 0 && phase == 0 && (dir || blocked) -> wipes--; wipe() }
    :: d_step { wipes > 0 && phase == 0 && !blocked -> wipes--; wipe(); blocked = true }
#endif
    :: break
    od
}

/* break_lock of a living holder (remove.py, R4): its file goes, then its ticket, and every waiter gets a byte. */
inline remove_broken() {
#ifndef KEEPS_TICKET
    if :: victim <= LAST && IN(broken, victim) -> forget_name(victim) :: else fi;   /* not one that it has taken since */
#endif
    skip
}

inline nudge() {
#ifndef NO_NUDGE
    nudged = nudged | (placed & reader & ~BIT(0));
#endif
    skip
}

proctype breaker() {
    do
    :: d_step { breaks > 0 && phase == 0 && victim == 0 && lock[0] != 0 && inside[0] == lock[0] ->
        breaks--; victim = lock[0];
        if :: victim <= LAST -> ADD(broken, victim) :: else fi;
        lock[0] = 0; DEL(guarded, 0); inside[0] = 0; tell_watchers(0); watching[0] = 0
      }
#ifdef NUDGES_FIRST
    :: d_step { victim != 0 && !nudging -> nudge(); nudging = true }
    :: d_step { nudging -> remove_broken(); victim = 0; nudging = false }
#else
    :: d_step { victim != 0 && !nudging -> remove_broken(); nudging = true }
    :: d_step { nudging -> nudge(); victim = 0; nudging = false }
#endif
    :: victim == 0 -> break
    od
}

proctype outside() {
    if
    :: d_step { lock[0] == OUTSIDE -> lock[0] = 0; DEL(guarded, 0); inside[0] = 0; tell_watchers(0); watching[0] = 0 }
    :: d_step { lock[0] == OUTSIDE -> ADD(closing, 0); tell_watchers(0); inside[0] = 0 }
    :: lock[0] != OUTSIDE
    fi
}

#define HELD_BY_THE_STOPPED(s) (lock[s] != 0 && IN(guarded, s) && IN(stopped | BIT(STAYER), lock[s]))

inline nothing_is_left() {
    assert(lock[0] == 0);
    assert(!(fresh | placed) || IN(placed, 0));
    assert(!dir || IN(placed, 0))
}

/* When nobody can go on. */
proctype judge() {
    timeout -> d_step {
        z = 1;
        do
        :: z <= N ->
            /* Nobody sleeps for ever while the lock is free. */
            assert(!RUNS(z) || (st[z] == Idle && round[z] == ROUNDS) || (STAYER == z && st[z] == Holding) ||
                (HELD_BY_THE_STOPPED(0) && HELD_BY_THE_STOPPED(SLOTS - 1)));
            z++
        :: else -> break
        od;
        z = 0; stopped = 0; phase = 1
    };
    timeout -> d_step {
        z = 1;
        do
        :: z <= N -> assert(st[z] == Dead || (st[z] == Idle && round[z] == ROUNDS)); z++
        :: else -> break
        od;
        if :: !disturbed -> nothing_is_left() :: else fi;
        phase = 2
    };
    timeout -> d_step {
        assert(st[LAST] == Idle && round[LAST] == 1);
        if :: !blocked -> nothing_is_left() :: else fi
    }
}

init {
    d_step {
        x = 0; do :: x <= LAST -> candidate[x] = NOBODY; ahead[x] = NOBODY; st[x] = Idle; x++ :: else -> break od;
#ifdef HELD
        lock[0] = OUTSIDE; ADD(guarded, 0); inside[0] = OUTSIDE;
#endif
        x = 0
    };
    atomic {
        run contender(1); run contender(2);
#if N > 2
        run contender(3);
#endif
#if N > 3
        run contender(4);
#endif
        run contender(LAST);
        run kernel(); run environment();
#if BREAKS > 0
        run breaker();
#endif
#ifdef HELD
        run outside();
#endif
        run judge()
    }
}
