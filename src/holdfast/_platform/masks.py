"""The masks of our watches on lock files, by inotify(7). The rest of its constants is in inotify.py."""

IN_ATTRIB = 0x4
IN_CLOSE_WRITE = 0x8
IN_CLOSE_NOWRITE = 0x10
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_DONT_FOLLOW = 0x2000000

# Not IN_CLOSE_NOWRITE: holders keep a descriptor that can write, and every mere look would wake all waiters.
# Where a holder may have one that can only read (flock(1) has), that price is paid.
_MASK = IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_CLOSE_WRITE | IN_DONT_FOLLOW
MASKS = (_MASK, _MASK | IN_CLOSE_NOWRITE)
