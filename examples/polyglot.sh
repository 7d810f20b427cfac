#!/bin/sh
# Adds 1 to the number in a file, so many times: polyglot.sh COUNTER LOCK TIMES
#
# The whole of the sema protocol in a plain shell. What this cannot do: prove that a holder is dead. Who is killed in here
# leaves a lock that others take over when it is an hour old. With holdfast installed, `holdfast run LOCK -- CMD` does that
# at once, and does not poll.
set -eu
counter=$1 lock=$2 times=$3

trap 'exit 1' HUP INT TERM # so that the trap below removes the lock file
test -w "$(dirname "$lock")" # or the loop below would never end

acquire() {
    # With noclobber, `>` creates exclusively (O_EXCL): it fails if the file is there, whoever made it.
    until (set -C; : >"$lock") 2>/dev/null; do
        sleep 0.002
    done
    trap 'rm -f "$lock"' EXIT # only now: before, it would have removed another's
    printf 'pid=%s\ntimestamp=%s\ntag=counting in sh\n' $$ "$(date +%s)" >"$lock"
}

release() {
    trap - EXIT
    rm "$lock"
}

while [ "$times" -gt 0 ]; do
    acquire
    read -r number <"$counter"
    echo $((number + 1)) >"$counter"
    release
    times=$((times - 1))
done
