# Runs the shell blocks of a session: one descriptor has them, each ended by NUL; another gets the exit status of each.
# All share this one bash, its variables, jobs and directory. What they start has neither descriptor.
eval "exec 60<&$1 $1<&- 61>&$2 $2>&-"
set --
set -m # jobs as in the shell of a person: interrupts reach them, and %1 is the first
_status() { return "$1"; }
_last=0
while IFS= read -r -d '' -u 60 _block; do
    _status "$_last"
    eval "$_block" 60<&- 61>&-
    _last=$?
    printf '%s\n' "$_last" >&61
done
