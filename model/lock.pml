/* The lock file itself: publishing, taking over, removing, releasing (src/holdfast/engines/file/publish.py, takeover.py,
 * remove.py, hold.py), without the queue, on which none of it depends.
 *
 * Each guarded command below is one system call of one contender, or a few that nothing can tell apart.
 *
 * -D N=…        contenders, 1 to N, which begin in this order unless they differ
 * -D ROUNDS=…   acquisitions of each
 * -D METHOD=…   how they publish: UNNAMED, NAMED, EXCLUSIVE
 * -D CRASHES    how many of them may die, at any step
 * -D LOCKLESS=… a set: contenders without kernel locks
 * -D UNABLE=…   a set: contenders that may not write to others' lock files, but remove them
 * -D READER     a process that may only read takes a shared lock on a lock file, and keeps it
 * -D FOREIGN    another implementation may remove the lock file of a dead holder, at any step
 * -D BREAKS=…   how often a process removes the lock of whoever has it, on purpose
 * -D …          mutants: each takes away what an invariant rests on
 */

#define UNNAMED 1
#define NAMED 2
#define EXCLUSIVE 3

#ifndef N
#define N 2
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef METHOD
#define METHOD UNNAMED
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef BREAKS
#define BREAKS 0
#endif
#ifndef LOCKLESS
#define LOCKLESS 0
#endif
#ifndef UNABLE
#define UNABLE 0
#endif

/* Mutants that are part of a condition. */
#ifndef REPLACES
#define REPLACES false
#endif
#ifndef DEAD_CLAIMS_COUNT
#define DEAD_CLAIMS_COUNT false
#endif
#ifndef NO_BIT
#define NO_BIT false
#endif
#ifndef BIT_WITHOUT_LOCKS
#define BIT_WITHOUT_LOCKS false
#endif
#ifndef CREATOR_OWNS
#define CREATOR_OWNS false
#endif
#ifndef NO_CLAIM
#define NO_CLAIM false
#endif
#ifndef IGNORES_CLAIMS
#define IGNORES_CLAIMS false
#endif
#ifndef ALL_GUARDED
#define ALL_GUARDED false
#endif
#ifndef NO_SECOND_LOOK
#define NO_SECOND_LOOK false
#endif
#ifndef SHARED_IN_PLACE
#define SHARED_IN_PLACE false
#endif
#ifndef MARKED_WITHOUT
#define MARKED_WITHOUT false
#endif
#ifndef NO_THIRD_LOOK
#define NO_THIRD_LOOK false
#endif
#ifndef NO_WAIT
#define NO_WAIT false
#endif
#ifndef BLIND_RELEASE
#define BLIND_RELEASE false
#endif
#ifndef BREAKS_BLINDLY
#define BREAKS_BLINDLY false
#endif

#define LAST (N + 1)      /* comes when all others have ended: it must get in */
#define BREAKER (N + 2)
#define READS (N + 3)
#define INODES (N + 3)
#define BIT(p) (1 << (p))
#define IN(set, p) ((set) & BIT(p))
#define ADD(set, p) set = (set) | BIT(p)
#define DEL(set, p) set = (set) & ~BIT(p)

mtype = {
    Idle, Look, Read, Judge, Wait,
    Create, Link, UnlinkTemporary, OpenPublished, Guard, CheckPublished, Finish, WriteFinished,
    TakeGuard, Claim, ListClaims, CheckJudged, Write, Remove, EndClaim, DropGuard, CheckPath, WaitForClaims,
    Holding, Unlink, Unlock, Dead
};
#define NO_GUARD 0
#define SHARED 1
#define WHOLE 2

mtype st[N + 4];
byte round[N + 2];
byte crashes = CRASHES, breaks = BREAKS;
byte dead, broken;
byte phase;
byte inside;                  /* ghost: who is in the critical section */

/* The directory and its files. An inode is used again as soon as no name and no descriptor leads to it. */
byte path;                    /* the inode that the lock path names; 0: none */
byte record[INODES + 1];      /* who wrote the record of an inode; 0: it is empty */
byte marked;                  /* inodes whose record says that its holder keeps a guard (`g`, not `n`) */
byte unfinished;              /* inodes with the sticky bit (P6) */
byte exclusive[INODES + 1];   /* who has the guard; 0: nobody */
byte shared[INODES + 1];      /* who shares it */
byte temporary[N + 2];        /* the inode of a contender's temporary name */
byte claims;                  /* whose claims lie in the directory */
byte guarded_claims;          /* those whose name says that they were made under an exclusive guard */

/* What a contender has open, and what it has seen. */
byte fd[N + 4];
byte seen[N + 4];             /* the record */
byte seen_marked, seen_unfinished;
byte how[N + 4];              /* how it has the guard */
byte created;                 /* who has made the file that it finishes */
byte taking;                  /* who takes over, not publishes */
hidden byte x, y;

#define RUNS(p) (!IN(dead, p))
/* Whose claim would be on the inode of p: a claimant has it open. */
#define OPENED_BY(q, p) (fd[q] == fd[p] -> BIT(q) : 0)
#define ON_INODE(p) (dead | OPENED_BY(1, p) | OPENED_BY(2, p) | OPENED_BY(3, p) | OPENED_BY(4, p) | (N > 2 -> OPENED_BY(BREAKER, p) : 0))
/* Claims that stand in the way of p (T12, T13). */
#define OTHER_CLAIMS(p) (claims & ON_INODE(p) & ~BIT(p) & ~(DEAD_CLAIMS_COUNT -> 0 : dead) & ~(how[p] == WHOLE -> guarded_claims : 0))
#define SAME_AS_SEEN(p) (path == fd[p] && record[fd[p]] == seen[p] && !IN(marked, fd[p]) == !MARKED(p))
#define GUARD_IS_FREE(p) (exclusive[fd[p]] == 0 && !(shared[fd[p]] & ~BIT(p)))
#define MARKED(p) IN(seen_marked, p)

inline new_inode(p) {
    x = 1;
    do
    :: x <= INODES ->
        y = 1;
        if
        :: path == x -> y = 0
        :: else
        fi;
        if :: record[x] != 0 || exclusive[x] != 0 || shared[x] != 0 -> y = 0 :: else fi;
        if
        :: y == 1 ->
            y = 1;
            do
            :: y <= BREAKER -> if :: fd[y] == x || (y <= LAST && temporary[y] == x) -> break :: else fi; y++
            :: else -> break
            od;
            if :: y > BREAKER -> break :: else fi
        :: else
        fi;
        x++
    :: else -> assert(false)   /* too few inodes */
    od;
    fd[p] = x
}

inline tidy_inodes() {
    x = 1;
    do
    :: x <= INODES ->
        if
        :: path == x
        :: else ->
            y = 1;
            do
            :: y <= BREAKER -> if :: fd[y] == x || (y <= LAST && temporary[y] == x) -> break :: else fi; y++
            :: else -> break
            od;
            if
            :: y > BREAKER -> record[x] = 0; DEL(marked, x); DEL(unfinished, x); exclusive[x] = 0; shared[x] = 0
            :: else
            fi
        fi;
        x++
    :: else -> break
    od;
    x = 0
}

inline drop_guard(p) {
    if :: exclusive[fd[p]] == p -> exclusive[fd[p]] = 0 :: else fi;
    DEL(shared[fd[p]], p); how[p] = NO_GUARD
}

inline close_all(p) {
    drop_guard(p); fd[p] = 0; seen[p] = 0; DEL(seen_marked, p); DEL(seen_unfinished, p); DEL(created, p); DEL(taking, p);
    tidy_inodes()
}

inline make_claim(p) {
    ADD(claims, p);
    if :: how[p] == WHOLE || ALL_GUARDED -> ADD(guarded_claims, p) :: else fi
}

inline end_claim(p) { DEL(claims, p); DEL(guarded_claims, p) }

inline start_over(p) { end_claim(p); DEL(broken, p); close_all(p); st[p] = Look }

inline enter(p) {
    assert(inside == 0);      /* exclusion */
    inside = p; end_claim(p); seen[p] = 0; DEL(seen_marked, p); DEL(seen_unfinished, p); DEL(created, p); DEL(taking, p);
    st[p] = Holding
}

#define LEFT(p) (p == LAST && phase == 2 && round[p] == 0) || (p != LAST && round[p] < ROUNDS)
#if LOCKLESS || UNABLE
#define IN_TURN(p) true
#else
#define IN_TURN(p) (p == 1 || p == LAST || round[p - 1] > 0 || st[p - 1] != Idle)
#endif

/* Whether a look would show something else: every wait ends by an event, or by a poll for what makes none. */
#define HAS_CHANGED(p) (path != fd[p] || record[fd[p]] != seen[p] || !IN(marked, fd[p]) != !MARKED(p) || \
    !IN(unfinished, fd[p]) != !IN(seen_unfinished, p) || \
    (exclusive[fd[p]] == 0 && !OTHER_CLAIMS(p) && ( \
        (seen[p] == 0 && IN(seen_unfinished, p) && !IN(LOCKLESS, p)) || \
        (seen[p] != 0 && MARKED(p) && !IN(LOCKLESS, p)) || \
        (seen[p] != 0 && !MARKED(p) && IN(dead, seen[p])))))

proctype contender(byte p) {
    do
    :: d_step { RUNS(p) && st[p] == Idle && (LEFT(p)) && IN_TURN(p) -> st[p] = Create }

    /* The look: one descriptor, the record, the guard. */
    :: d_step { RUNS(p) && st[p] == Look ->
        if :: path == 0 -> st[p] = Create :: else -> fd[p] = path; st[p] = Read fi
      }
    :: d_step { RUNS(p) && st[p] == Read ->
        seen[p] = record[fd[p]];
        if :: IN(marked, fd[p]) -> ADD(seen_marked, p) :: else fi;
        if :: IN(unfinished, fd[p]) -> ADD(seen_unfinished, p) :: else fi;
        st[p] = Judge
      }
    :: d_step { RUNS(p) && st[p] == Judge ->
        if
        :: exclusive[fd[p]] != 0 && !IN(LOCKLESS, p) -> st[p] = Wait           /* alive, proven */
        :: seen[p] == 0 && !IN(seen_unfinished, p) && (exclusive[fd[p]] == 0 || IN(LOCKLESS, p)) -> st[p] = Wait   /* P7 */
        :: seen[p] == 0 && IN(seen_unfinished, p) && IN(LOCKLESS, p) -> st[p] = Wait
        :: seen[p] == 0 && IN(seen_unfinished, p) && exclusive[fd[p]] == 0 && !IN(LOCKLESS, p) ->   /* P6, T9 */
            if :: GUARD_IS_FREE(p) -> st[p] = Guard :: else -> ADD(taking, p); st[p] = TakeGuard fi
        :: seen[p] != 0 && MARKED(p) && IN(LOCKLESS, p) -> st[p] = Wait         /* T1 */
        :: seen[p] != 0 && MARKED(p) && exclusive[fd[p]] == 0 && !IN(LOCKLESS, p) -> ADD(taking, p); st[p] = TakeGuard   /* dead, proven */
        :: seen[p] != 0 && !MARKED(p) && (exclusive[fd[p]] == 0 || IN(LOCKLESS, p)) ->
            if :: IN(dead, seen[p]) -> ADD(taking, p); st[p] = TakeGuard :: else -> st[p] = Wait fi
        fi
      }
    :: d_step { RUNS(p) && st[p] == Wait && HAS_CHANGED(p) -> start_over(p) }

    /* P1, P2: the unnamed file is guarded and written before it has a name. */
    :: d_step { RUNS(p) && st[p] == Create && METHOD == UNNAMED && !IN(LOCKLESS, p) ->
        new_inode(p); record[fd[p]] = p; ADD(marked, fd[p]);
#ifndef GUARD_LATE
        exclusive[fd[p]] = p; how[p] = WHOLE;
#endif
        st[p] = Link
      }
    :: d_step { RUNS(p) && st[p] == Create && METHOD == NAMED && !IN(LOCKLESS, p) ->
        new_inode(p); temporary[p] = fd[p]; record[fd[p]] = p;
#ifdef MARKED_EARLY
        ADD(marked, fd[p]);
#endif
        st[p] = Link
      }
    :: d_step { RUNS(p) && st[p] == Link ->
        if
        :: path == 0 || REPLACES ->
            path = fd[p];
            if
            :: METHOD == NAMED -> st[p] = UnlinkTemporary
#ifdef GUARD_LATE
            :: METHOD == UNNAMED -> st[p] = Guard
#else
            :: METHOD == UNNAMED -> enter(p)
#endif
            fi
        :: else -> temporary[p] = 0; close_all(p); st[p] = Look   /* EEXIST */
        fi
      }
#ifdef GUARD_LATE
    :: d_step { RUNS(p) && st[p] == Guard && METHOD == UNNAMED ->
        if :: GUARD_IS_FREE(p) -> exclusive[fd[p]] = p; how[p] = WHOLE :: else fi;
        enter(p)
      }
#endif
    :: d_step { RUNS(p) && st[p] == UnlinkTemporary -> temporary[p] = 0; st[p] = OpenPublished }
    :: d_step { RUNS(p) && st[p] == OpenPublished ->
        if
        :: path == 0 -> close_all(p); st[p] = Look
        :: else -> fd[p] = path; ADD(created, p); st[p] = Guard; tidy_inodes()
        fi
      }

    /* P5, P6, P7: creating does not acquire. */
    :: d_step { RUNS(p) && st[p] == Create && (METHOD == EXCLUSIVE || IN(LOCKLESS, p)) ->
        if
        :: path == 0 ->
            new_inode(p); path = fd[p]; ADD(created, p);
            if :: !NO_BIT && (!IN(LOCKLESS, p) || BIT_WITHOUT_LOCKS) -> ADD(unfinished, fd[p]) :: else fi;
            st[p] = Guard
        :: else -> st[p] = Look
        fi
      }
    :: d_step { RUNS(p) && st[p] == Guard && IN(LOCKLESS, p) -> st[p] = Finish }
#ifndef GUARD_LATE
    :: d_step { RUNS(p) && st[p] == Guard && !IN(LOCKLESS, p) && GUARD_IS_FREE(p) ->
        exclusive[fd[p]] = p; how[p] = WHOLE;
        if :: METHOD == NAMED && IN(created, p) -> st[p] = CheckPublished :: else -> st[p] = Finish fi
      }
    :: d_step { RUNS(p) && st[p] == Guard && !IN(LOCKLESS, p) && !GUARD_IS_FREE(p) ->   /* refused, after some tries */
        if :: METHOD == NAMED && IN(created, p) -> st[p] = CheckPublished :: else -> start_over(p) fi
      }
#endif
    /* P3: known by its process until it is guarded. */
    :: d_step { RUNS(p) && st[p] == CheckPublished ->
        if
        :: path == fd[p] && record[fd[p]] == p ->
            if :: how[p] == WHOLE -> ADD(marked, fd[p]) :: else fi;
            enter(p)
        :: else -> start_over(p)
        fi
      }
    :: d_step { RUNS(p) && st[p] == Finish ->
        if
        :: (path == fd[p] && record[fd[p]] == 0 || CREATOR_OWNS && IN(created, p)) && (IN(created, p) || IN(unfinished, fd[p])) ->
            st[p] = WriteFinished
        :: else -> start_over(p)
        fi
      }
    :: d_step { RUNS(p) && st[p] == WriteFinished ->
        record[fd[p]] = p; DEL(unfinished, fd[p]);
        if :: how[p] == WHOLE -> ADD(marked, fd[p]) :: else fi;
        if :: IN(broken, p) -> DEL(created, p); st[p] = Holding :: else -> enter(p) fi   /* as if it had been broken after this */
      }

    /* T1: two gates, the guard of the inode and the claim. */
    :: d_step { RUNS(p) && st[p] == TakeGuard ->
        if
        :: IN(LOCKLESS, p) -> st[p] = Claim
#ifdef NO_GATE
        :: !IN(LOCKLESS, p) -> how[p] = WHOLE; st[p] = CheckJudged
#else
        :: !IN(LOCKLESS, p) && GUARD_IS_FREE(p) ->
            exclusive[fd[p]] = p; how[p] = WHOLE;
            if :: MARKED(p) && !IN(UNABLE, p) || NO_CLAIM -> st[p] = CheckJudged :: else -> st[p] = Claim fi   /* T8 */
        :: !IN(LOCKLESS, p) && !GUARD_IS_FREE(p) && exclusive[fd[p]] == 0 ->   /* T9: only readers have it */
            ADD(shared[fd[p]], p); how[p] = SHARED; st[p] = Claim
        :: !IN(LOCKLESS, p) && exclusive[fd[p]] != 0 -> start_over(p)
#endif
        fi
      }
    /* T11: a claim, and then a list of the others. */
    :: d_step { RUNS(p) && st[p] == Claim ->
#ifdef LISTS_FIRST
        if :: OTHER_CLAIMS(p) -> drop_guard(p); st[p] = Wait :: else -> st[p] = ListClaims fi
#else
        make_claim(p); st[p] = ListClaims
#endif
      }
    :: d_step { RUNS(p) && st[p] == ListClaims ->
        if
#ifdef LISTS_FIRST
        :: true -> make_claim(p); st[p] = CheckJudged
#endif
        :: OTHER_CLAIMS(p) && !IGNORES_CLAIMS -> end_claim(p); drop_guard(p); st[p] = Wait
        :: else -> claims = claims & (~dead | BIT(p)); guarded_claims = guarded_claims & claims; st[p] = CheckJudged   /* T16 */
        fi
      }
    /* T2: the same inode at the path, and the same record. */
    :: d_step { RUNS(p) && st[p] == CheckJudged ->
        if
        :: SAME_AS_SEEN(p) || NO_SECOND_LOOK ->
#ifdef REMOVES_LATE
            if :: IN(UNABLE, p) -> drop_guard(p); end_claim(p) :: else fi;
#endif
            if :: how[p] == SHARED && !SHARED_IN_PLACE || IN(UNABLE, p) || seen[p] == 0 -> st[p] = Remove :: else -> st[p] = Write fi
        :: else -> start_over(p)
        fi
      }
    /* T3 */
    :: d_step { RUNS(p) && st[p] == Write ->
        record[fd[p]] = p;
        if :: how[p] == WHOLE || MARKED_WITHOUT -> ADD(marked, fd[p]) :: else -> DEL(marked, fd[p]) fi;
        st[p] = CheckPath
      }
    /* T4 */
    :: d_step { RUNS(p) && st[p] == CheckPath ->
        if
        :: path == fd[p] || NO_THIRD_LOOK ->
            if :: MARKED(p) && how[p] == WHOLE && !NO_WAIT -> st[p] = WaitForClaims :: else -> enter(p) fi
        :: else -> start_over(p)
        fi
      }
    /* T8: a process that breaks the dead holder's lock has a claim; it has found our record, or removed the file. */
    :: d_step { RUNS(p) && st[p] == WaitForClaims && !OTHER_CLAIMS(p) ->
        if :: path == fd[p] && record[fd[p]] == p -> enter(p) :: else -> start_over(p) fi
      }
    /* T6 */
    :: d_step { RUNS(p) && st[p] == Remove -> path = 0; st[p] = EndClaim }
    :: d_step { RUNS(p) && st[p] == EndClaim -> end_claim(p); st[p] = DropGuard }
    :: d_step { RUNS(p) && st[p] == DropGuard -> close_all(p); st[p] = Create }

    /* The release: FH1, FH2. */
    :: d_step { RUNS(p) && st[p] == Holding ->
#ifdef UNLOCKS_FIRST
        drop_guard(p);
#endif
        st[p] = Unlink
      }
    :: d_step { RUNS(p) && st[p] == Unlink ->
        if :: inside == p -> inside = 0 :: else fi;
        if :: path == fd[p] && record[fd[p]] == p || BLIND_RELEASE -> path = 0 :: else fi;
        st[p] = Unlock
      }
    :: d_step { RUNS(p) && st[p] == Unlock ->
        close_all(p); DEL(broken, p); round[p]++; st[p] = Idle
      }
    od
}

inline die(p) {
    ADD(dead, p); st[p] = Dead;
    if :: inside == p -> inside = 0 :: else fi;
    DEL(broken, p); seen[p] = 0; DEL(seen_marked, p); DEL(seen_unfinished, p); DEL(created, p); DEL(taking, p)
}

/* The descriptors of the dead are closed, and their guards end. */
#define BURY(p) :: d_step { IN(dead, p) && fd[p] != 0 -> drop_guard(p); fd[p] = 0; tidy_inodes() }
#define MAY_DIE(p) :: d_step { crashes > 0 && phase == 0 && st[p] != Idle && st[p] != Dead -> crashes--; die(p) }

proctype kernel() {
    do
    BURY(1)
    BURY(2)
#if N > 2
    BURY(3)
#endif
#if N > 3
    BURY(4)
#endif
    od
}

proctype environment() {
    do
    MAY_DIE(1)
    MAY_DIE(2)
#if N > 2
    MAY_DIE(3)
#endif
#if N > 3
    MAY_DIE(4)
#endif
#ifdef READER
    :: d_step { phase == 0 && path != 0 && exclusive[path] == 0 && !IN(shared[path], READS) -> ADD(shared[path], READS) }
#endif
#ifdef FOREIGN
    :: d_step { phase == 0 && path != 0 && record[path] != 0 && IN(dead, record[path]) -> path = 0; tidy_inodes() }
#endif
    :: break
    od
}

/* remove.py: R1, R2. */
proctype breaker() {
    do
    :: d_step { st[BREAKER] == Idle && breaks > 0 && phase == 0 && path != 0 -> breaks--; fd[BREAKER] = path; st[BREAKER] = Read }
    :: d_step { st[BREAKER] == Read -> seen[BREAKER] = record[fd[BREAKER]]; if :: IN(marked, fd[BREAKER]) -> ADD(seen_marked, BREAKER) :: else fi; st[BREAKER] = TakeGuard }
    :: d_step { st[BREAKER] == TakeGuard ->
        if
        :: GUARD_IS_FREE(BREAKER) -> exclusive[fd[BREAKER]] = BREAKER; how[BREAKER] = WHOLE
        :: !GUARD_IS_FREE(BREAKER) && exclusive[fd[BREAKER]] == 0 -> ADD(shared[fd[BREAKER]], BREAKER); how[BREAKER] = SHARED
        :: exclusive[fd[BREAKER]] != 0   /* it looks alive: no guard */
        fi;
#ifdef BREAKS_UNCLAIMED
        st[BREAKER] = CheckJudged
#else
        st[BREAKER] = Claim
#endif
      }
    :: d_step { st[BREAKER] == Claim ->
        make_claim(BREAKER);
        st[BREAKER] = ListClaims
      }
    :: d_step { st[BREAKER] == ListClaims ->
        if :: OTHER_CLAIMS(BREAKER) -> st[BREAKER] = EndClaim :: else -> st[BREAKER] = CheckJudged fi
      }
    :: d_step { st[BREAKER] == CheckJudged ->
        if :: SAME_AS_SEEN(BREAKER) || BREAKS_BLINDLY -> st[BREAKER] = Remove :: else -> st[BREAKER] = EndClaim fi
      }
    :: d_step { st[BREAKER] == Remove ->
        if
        :: path == fd[BREAKER] ->
            assert(inside == 0 || record[path] != inside || inside == seen[BREAKER] || seen[BREAKER] == 0);   /* R1: the one that was meant */
            if :: inside != 0 && record[path] == inside -> ADD(broken, inside); inside = 0 :: else fi;
            if :: record[path] == 0 && exclusive[path] != 0 && exclusive[path] <= LAST -> ADD(broken, exclusive[path]) :: else fi;
            path = 0
        :: else   /* released since the check. That its successor's would go is a limit (docs/guarantees.md). */
        fi;
        st[BREAKER] = EndClaim
      }
    :: d_step { st[BREAKER] == EndClaim -> end_claim(BREAKER); close_all(BREAKER); st[BREAKER] = Idle }
    :: st[BREAKER] == Idle -> break
    od
}

/* An empty file without the bit counts as held, until its protocol's rule of age (P7). */
#define NOBODY_KNOWS (LOCKLESS && path != 0 && record[path] == 0 && !IN(unfinished, path))
/* A contender without kernel locks leaves a guarded holder's lock to those that have them (T1). */
#define LEFT_TO_OTHERS(p) (IN(LOCKLESS, p) && st[p] == Wait && path == fd[p] && IN(marked | unfinished, path))

inline all_have_ended() {
    x = 1;
    do
    :: x <= N -> assert(st[x] == Dead || (st[x] == Idle && round[x] == ROUNDS) || NOBODY_KNOWS || LEFT_TO_OTHERS(x)); x++
    :: else -> break
    od;
    x = 0
}

/* When nobody can go on. */
proctype judge() {
    timeout -> d_step { all_have_ended(); assert(inside == 0); if :: crashes == CRASHES -> assert(path == 0 && claims == 0) :: else fi; phase = 2 };
    timeout -> d_step { assert((st[LAST] == Idle && round[LAST] == 1 && path == 0) || NOBODY_KNOWS) }
}

init {
    d_step { x = 0; do :: x < N + 4 -> st[x] = Idle; x++ :: else -> break od; x = 0 };
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
        run judge()
    }
}
