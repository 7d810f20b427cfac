"""The event masks of inotify(7), and those of our watches on lock files."""

IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_CLOSE_WRITE = 0x8
IN_CLOSE_NOWRITE = 0x10
IN_MOVED_FROM, IN_MOVED_TO = 0x40, 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_UNMOUNT = 0x2000
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x1000000
IN_DONT_FOLLOW = 0x2000000
IN_MASK_ADD = 0x20000000

# Not IN_CLOSE_NOWRITE: holders keep a descriptor that can write, and every mere look would wake all waiters.
# Where a holder may have one that can only read (flock(1) has), that price is paid.
_MASK = IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF | IN_CLOSE_WRITE | IN_DONT_FOLLOW
MASKS = (_MASK, _MASK | IN_CLOSE_NOWRITE)
