"""The meaning of a mount for locks: one table, by the type of the filesystem and the options that it is mounted with.

ST1  A row says only what the source named beside it says. Whatever depends on a server, on a daemon or on its
     configuration is unknown (`guards` is None), and `text` says so.
ST2  The options are those in force (`/proc/self/mountinfo`), not those that were asked for: NFS shows `local_lock=all`
     for `nolock`, and ignores both in version 4.
ST3  A type that is not in the table is local, unless its source names a host; then it is shared, and nothing more is
    known.
"""

from __future__ import annotations

import errno

from . import procfs
from .values import ALWAYS_LOCAL, LOST_SIGHT, Storage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Row = Callable[[str, Mapping[str, str]], Storage]

_PROVE = "find out by trying: holdfast doctor DIR --listen on one machine, and --with HOST on another"
_ELSEWHERE = "use another filesystem, a protocol that does not rest on kernel locks alone (sema), or a server"
_SEEN = "other machines see its kernel locks (flock)"
_UNSEEN = "its kernel locks (flock) stay on this machine"
_UNKNOWN = "whether other machines see its kernel locks (flock) cannot be known from here"
_STALE = "a file that another machine has just written may be read as it was before"
_LASTING = "its server may keep the kernel locks of a machine that has died"
_NO_FILES = "there can be no lock files here: use the protocol flock"
_NOT_EXCLUSIVE = "two machines can create the same lock file"
_NO_LINKS = "it has no hard links"


def storage_of(kind: str, options: Mapping[str, str], source: str = "", release: str = "") -> Storage:
    """The storage of a mount of this type. `release`: of the Linux kernel; empty on other systems."""
    row = _ROWS.get(kind)
    if row is not None:
        return row(kind, {**options, "release": release})
    if _names_a_host(kind, source):
        return shared(kind)
    return _served(kind) if kind.startswith("fuse") else Storage(kind)


def storage_at(mount: procfs.Mount | None, table: list[procfs.Mount], release: str = "") -> Storage:
    """The storage of this mount; an overlay has that of its upper directory, as far as the table shows it."""
    if mount is None:
        return Storage("", text="of a type that cannot be known")
    found = storage_of(mount.kind, mount.options if mount.kind in _ROWS else {}, mount.source, release)
    if not mount.upper:
        return found
    below = procfs.mount_at(mount.upper, table)
    if below is None or below.kind == mount.kind:
        return found
    upper = storage_of(below.kind, below.options, below.source, release)
    if not upper.shared:
        return found if upper.events else upper.replaced(kind=mount.kind)
    # overlayfs has no flock of its own, so the kernel locks the overlay's file and not the one below (fs/overlayfs).
    return shared(
        mount.kind, False, f"it lies over {upper.kind}, and its kernel locks (flock) stay within it", _ELSEWHERE,
        exclusive=upper.exclusive, links=upper.links, fresh=upper.fresh,
    )  # fmt: skip


def shared(
    kind: str,
    guards: bool | None = None,
    said: str = "",
    remedy: str = "",
    *,
    exclusive: bool = True,
    links: bool = True,
    fresh: bool = True,
    lasting: bool = False,
    apart: bool | None = None,
) -> Storage:
    """The storage of a mount that other machines share; the defaults are for a type that the table does not know.

    `said`: why the guards are so, in place of the plain sentence. `apart`: whether record locks are seen, where that
    differs from `flock`.
    """
    words = [said or {True: _SEEN, False: _UNSEEN, None: _UNKNOWN}[guards]]
    lasting = lasting and guards is not False
    words += [_LASTING] if lasting else []
    words += [text for fine, text in ((exclusive, _NOT_EXCLUSIVE), (links, _NO_LINKS), (fresh, _STALE)) if not fine]
    what = {True: "", False: _ELSEWHERE, None: _PROVE}[guards] if exclusive and fresh else _ELSEWHERE
    return Storage(
        kind, shared=True, guards=guards, records=guards if apart is None else apart, exclusive=exclusive, links=links,
        events=False, fresh=fresh, lasting=lasting,
        text=f"shared with other machines; {'; '.join(words)}", remedy=remedy or what,
    )  # fmt: skip


def _served(kind: str) -> Storage:
    return Storage(kind, events=False, text="served by a process, which may be slow, or change files unseen")


def _names_a_host(kind: str, source: str) -> bool:
    """Whether the source names a host (ST3). A colon before the first slash is a host's, or a service's, where a
    process serves the files."""
    before = source.partition("/")[0]
    if "fuse" in kind:
        return source.startswith("//") or ":" in before
    return kind not in _LOCAL and (source.startswith("//") or (before.endswith(":") and f"{before}/" in source))


# -- the rows ----------------------------------------------------------------------------------------------------------


def _nfs(kind: str, options: Mapping[str, str]) -> Storage:
    """nfs(5), flock(2): since Linux 2.6.12 a byte-range lock of the whole file on the server, by lockd in version 3,
    which drops a machine's locks when that has restarted (sm-notify(8)). With `nocto`, an open does not ask the server.
    open(2): O_EXCL needs version 3. `nolocks`, `locallocks`: macOS mount_nfs(8); `nolockd`: that of FreeBSD."""
    version = options.get("vers", "4" if kind == "nfs4" else "")
    lock = options.get("local_lock", "")
    off = next((name for name in ("nolock", "nolocks", "nolockd", "locallocks") if name in options), "")
    if lock in ("flock", "all"):
        off = f"local_lock={lock}"
    more = {"exclusive": version[:1] != "2", "fresh": "nocto" not in options, "lasting": version[:1] in ("2", "3")}
    if lock in ("flock", "posix"):
        more["apart"] = lock == "flock"
    if off and (lock or version[:1] != "4"):
        remedy = "mount it without nolock and local_lock (nfs(5)); version 3 needs rpc.statd and lockd"
        return shared(kind, False, f"{_UNSEEN} ({off})", remedy, **more)
    remedy = "" if more["fresh"] else "mount it without nocto (nfs(5))"
    if lock or version[:1] == "4":
        return shared(kind, True, f"{_SEEN}: its server keeps them", remedy, **more)
    return shared(kind, None, "", remedy, **more)


def _cifs(kind: str, options: Mapping[str, str]) -> Storage:
    """flock(2): since Linux 5.5 a byte-range lock of the whole file on the server, which is mandatory. mount.cifs(8):
    `nobrl` sends none; `cache=loose` serves what it has. The values of the table: fs/smb/client/cifsfs.c. Samba drops
    the locks of a machine that has died when its connection ends, as smb.conf(5) has it (`socket options`). On Linux
    (6.1, with Samba 4.17), a file that has just got a second name cannot be opened by it (EINVAL)."""
    cache = options.get("cache", "strict")
    fresh = cache in ("strict", "none")
    remedy = "" if fresh else "mount it with cache=strict (mount.cifs(8))"
    guards: bool | None = True
    said = f"{_SEEN}: its server keeps them, and refuses others to read a file that is locked"
    if "nobrl" in options:
        remedy = f"mount it without nobrl{'' if fresh else ' and with cache=strict'} (mount.cifs(8))"
        guards, said = False, f"{_UNSEEN} (nobrl)"
    elif _is_older(options["release"], (5, 5)):
        guards, said = None, f"{_UNKNOWN}: this kernel may not send them to the server"
    on_linux = bool(options["release"])
    said += f"; {_NO_FILES}" if on_linux else ""
    found = shared(kind, guards, said, remedy, fresh=fresh, lasting=True)
    return found.replaced(lock_files=not on_linux)


def _lustre(kind: str, options: Mapping[str, str]) -> Storage:
    """mount.lustre(8): `flock` is coherent across all clients, `localflock` on this one; else flock(2) fails."""
    remedy = "mount it with -o flock (mount.lustre(8))"
    if "localflock" in options:
        return shared(kind, False, f"{_UNSEEN} (localflock)", remedy)
    if "flock" in options:
        return shared(kind, True)
    return shared(kind, False, "its kernel locks (flock) are switched off", remedy)


def _cluster(kind: str, options: Mapping[str, str]) -> Storage:
    """Documentation/filesystems/ocfs2.rst, gfs2.rst, mount.gfs2(8): `localflocks` disables cluster-aware flock;
    `lock_nolock`, which implies it, is for one machine."""
    if options.get("lockproto") == "lock_nolock":
        return _served(kind).replaced(text="a cluster filesystem, mounted for one machine (lock_nolock)")
    if "localflocks" in options:
        remedy = f"mount it without localflocks (mount.{kind}(8))"
        return shared(kind, False, f"{_UNSEEN} (localflocks)", remedy)
    return shared(kind, True)


def _9p(kind: str, options: Mapping[str, str]) -> Storage:
    """fs/9p/vfs_file.c: 9P2000.L sends flock to the server, older dialects do not. QEMU's grants every lock, diod keeps
    them until the connection ends. A name is not looked up again as long as it is in use (fs/9p/vfs_dentry.c has no
    d_revalidate without a cache). Documentation/filesystems/9p.rst: bit 3 of `cache=` (loose, fscache) keeps what it
    has. net/9p/client.c: a connection that has ended stays so (p9_client_disconnect)."""
    cache = options.get("cache", "none")
    try:
        fresh = not int(cache, 16) & 8
    except ValueError:
        fresh = cache not in ("loose", "fscache")
    if "noextend" in options or options.get("version", "9p2000.L") != "9p2000.L":
        return shared(kind, False, f"{_UNSEEN} (its dialect has none)", "mount it with version=9p2000.L", fresh=fresh)
    return shared(kind, None, f"{_UNKNOWN}: some servers grant every lock", fresh=fresh, lasting=True).replaced(
        pins=True, reconnects=False
    )


def _afs(kind: str, options: Mapping[str, str]) -> Storage:
    """fs/afs/flock.c: whole files are locked on the server, but with flock=local. OpenAFS does so always."""
    if options.get("flock") == "local":
        return shared(kind, False, f"{_UNSEEN} (flock=local)", "mount it without flock=local")
    return shared(kind, True)


def _gluster(kind: str) -> Storage:
    """xlators/mount/fuse sends flock to features/locks on the servers, which drop those of a connection that has ended
    (server.keepalive-time, server.tcp-user-timeout: 42 s). xlators/protocol/client: a call fails with ENOTCONN while
    there is no connection to the brick; what was opened before it ended fails with EBADFD ever after. ESTALE: a brick
    that has lost its power does not know what had not reached its disk, which the client still remembers (seen with
    10.3)."""
    return shared(kind, True, lasting=True).replaced(away=(*LOST_SIGHT, errno.ESTALE))


def _plain(guards: bool | None, said: str = "", remedy: str = "", *, exclusive: bool = True, links: bool = True) -> Row:
    """A row that goes by the type alone."""

    def row(kind: str, options: Mapping[str, str]) -> Storage:  # noqa: ARG001
        return shared(kind, guards, said, remedy, exclusive=exclusive, links=links)

    return row


_OBJECTS = _plain(False, exclusive=False, links=False)
"""Object stores as filesystems: README of s3fs (no coordination between clients, no hard links), rclone-mount(1),
"Semantics" of gcsfuse, of Mountpoint for S3. None serves FUSE_FLOCK, so the kernel keeps such locks for itself
(fs/fuse/file.c)."""
_MACHINES = _plain(None, f"{_UNKNOWN}: it is shared with the host of this virtual machine, or container")

_ROWS: dict[str, Row] = {
    **dict.fromkeys(
        (
            *("smbfs", "webdav", "afpfs"),  # macOS, BSD
            *("auristorfs", "fuse.lizardfs", "fuse.saunafs", "gpfs", "panfs", "wekafs", "pvfs2", "orangefs", "coda"),
            *("vxfs", "fuse.davfs", "fuse.davfs2", "fuse.gvfsd-fuse"),
        ),
        _plain(None),
    ),
    **dict.fromkeys(
        ("fuse.s3fs", "fuse.rclone", "rclone", "fuse.gcsfuse", "fuse.goofys", "fuse.mountpoint-s3", "fuse.blobfuse2"),
        _OBJECTS,
    ),
    **dict.fromkeys(  # the last three: Docker Desktop
        ("vmhgfs", "fuse.vmhgfs-fuse", "prl_fs", "drvfs", "fakeowner", "fuse.osxfs", "fuse.grpcfuse"), _MACHINES
    ),
    "nfs": _nfs,
    "nfs4": _nfs,
    "cifs": _cifs,
    "smb3": _cifs,
    "lustre": _lustre,
    "ocfs2": _cluster,
    "gfs2": _cluster,
    "9p": _9p,
    "afs": _afs,
    # fs/ceph/locks.c, src/client/fuse_ll.cc: the metadata server keeps them.
    "ceph": _plain(True),
    "fuse.ceph": _plain(True),
    "fuse.ceph-fuse": _plain(True),
    "glusterfs": lambda kind, _options: _gluster(kind),
    "fuse.glusterfs": lambda kind, _options: _gluster(kind),
    # README of JuiceFS: "Global File Locks"; the metadata engine keeps them.
    "fuse.juicefs": _plain(True),
    # mfsmount(8): flock is global, unless mfsnobsdlocks was given, which the table does not show.
    "fuse.mfs": _plain(None, f"{_UNKNOWN}: they do unless it is mounted with mfsnobsdlocks"),
    # beegfs-client.conf: tuneUseGlobalFileLocks is false unless it is set.
    "beegfs": _plain(
        None, f"{_UNKNOWN}: they do not unless tuneUseGlobalFileLocks is true in beegfs-client.conf",
        f"set tuneUseGlobalFileLocks = true on every machine; {_PROVE}",
    ),
    # sshfs has no lock operation, so the kernel keeps such locks for itself (fs/fuse/file.c).
    "fuse.sshfs": _plain(False),
    # docs of virtiofsd: locks are the guest's own unless it was started to pass them on, which no guest is told.
    "virtiofs": _plain(None, f"{_UNKNOWN}: they do not unless virtiofsd passes them on"),
    # fs/vboxsf: neither flock nor hard links.
    "vboxsf": _plain(False, links=False),
    "autofs": lambda kind, _options: _served(kind).replaced(text="not mounted yet: it could be any filesystem"),
    "macfuse": lambda kind, _options: _served(kind),
    "osxfuse": lambda kind, _options: _served(kind),
}  # fmt: skip
_LOCAL = ALWAYS_LOCAL | {"overlay", "apfs"}
"""Types whose source may be any word."""


def _is_older(release: str, than: tuple[int, int]) -> bool:
    major, _, minor = release.partition("-")[0].partition(".")
    minor = minor.partition(".")[0]
    return major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) < than
