"""The filesystems on which the machines are tried (lab.py): how machine 0 serves the directory, and how all mount it.

The served files lie on a disk of machine 0 that outlives its kernel, at /srv: /srv/share is the directory, /srv/state
the state that the server has to remember. `serve` and `mount` are shell scripts; ADDRESS and LEASE are set.
"""

from __future__ import annotations

import os
import shutil
from typing import NamedTuple

import pytest

_PATH = f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin"


class Share(NamedTuple):
    """One filesystem."""

    programs: tuple[str, ...]
    packages: str
    modules: str
    serve: str
    """Script that serves the directory; run again after the server was killed."""
    mount: str
    lock_files: bool = True
    """False if only `flock` works."""
    lasting: bool = True
    """Whether the server may keep the kernel locks of a machine that has died."""
    reconnects: bool = True
    """False if a client has to mount again after the server was away."""
    within: float = 1.2
    """The share of its lease after which the lock of a machine that died has to be free."""
    memory: int = 192
    """Memory of a machine, in MiB."""


_NFS = ("exportfs", "mount.nfs", "rpc.nfsd")
_STATD = "mkdir -p /run/rpcbind; pidof rpcbind >/dev/null || rpcbind -w; pidof rpc.statd >/dev/null || rpc.statd\n"
_NFSD = r"""
mkdir -p /srv/state/v4recovery /srv/state/sm; touch /srv/state/etab /srv/state/rmtab
mountpoint -q /var/lib/nfs || mount --bind /srv/state /var/lib/nfs
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
echo $LEASE > /proc/sys/fs/nfs/nlm_grace_period
echo $LEASE > /proc/fs/nfsd/nfsv4leasetime; echo $LEASE > /proc/fs/nfsd/nfsv4gracetime
exportfs -i -o rw,fsid=0,no_root_squash,no_subtree_check,insecure,sync '*:/srv/share'
"""

SHARES = {
    "nfs4": Share(
        programs=_NFS,
        packages="nfs-kernel-server nfs-common",
        modules="nfsd nfs nfsv4 lockd",
        serve=f"{_NFSD}pidof rpc.mountd >/dev/null || rpc.mountd -N 2 -N 3; rpc.nfsd -N 3 -V 4.2 4",
        mount="mount -i -t nfs4 -o vers=4.2,addr=10.9.0.1,clientaddr=10.9.0.$ADDRESS$OPTIONS 10.9.0.1:/ /media/share",
        lasting=False,
    ),
    "nfs3": Share(
        programs=(*_NFS, "rpcbind", "rpc.statd"),
        packages="nfs-kernel-server nfs-common rpcbind",
        modules="nfsd nfs nfsv3 lockd",
        serve=f"{_NFSD}{_STATD}pidof rpc.mountd >/dev/null || rpc.mountd -N 4; rpc.nfsd -N 4 -V 3 4",
        mount=f"{_STATD}mount -t nfs -o vers=3$OPTIONS 10.9.0.1:/srv/share /media/share",
    ),
    "smb": Share(
        programs=("smbd", "mount.cifs"),
        packages="samba cifs-utils",
        modules="nls_utf8 hmac cmac sha512_generic ctr ghash-generic ccm gcm cifs",
        serve=r"""
mkdir -p /run/samba /srv/state/private /srv/state/lock
cat > /run/smb.conf <<END
[global]
    server role = standalone
    map to guest = bad user
    guest account = root
    disable netbios = yes
    smb ports = 445
    disable spoolss = yes
    load printers = no
    private dir = /srv/state/private
    lock directory = /srv/state/lock
    state directory = /srv/state
    cache directory = /srv/state
    pid directory = /run/samba
    ncalrpc dir = /run/samba
    log file = /run/samba/log
    log level = 0
[share]
    path = /srv/share
    guest ok = yes
    read only = no
END
pidof smbd >/dev/null || smbd -D -s /run/smb.conf
""",
        mount="mount -t cifs -o vers=3.1.1,guest,cache=strict,noperm$OPTIONS //10.9.0.1/share /media/share",
        lock_files=False,
    ),
    "9p": Share(
        programs=("diod",),
        packages="diod",
        modules="9pnet 9pnet_fd 9p",
        serve="pidof diod >/dev/null || diod --no-auth --export /srv/share --listen 0.0.0.0:564 --allsquash"
        " --squashuser root --no-userdb --logdest /run/diod.log",
        mount="mount -t 9p -o trans=tcp,port=564,version=9p2000.L,uname=root,access=any,aname=/srv/share,cache=none"
        "$OPTIONS 10.9.0.1 /media/share",
        reconnects=False,
    ),
    "gluster": Share(
        programs=("glusterd", "glusterfsd", "mount.glusterfs"),
        packages="glusterfs-server glusterfs-client",
        modules="fuse",
        serve=r"""
mkdir -p /srv/state/glusterd /run/gluster /var/log/glusterfs /srv/share/brick
mountpoint -q /var/lib/glusterd || mount --bind /srv/state/glusterd /var/lib/glusterd
pidof glusterd >/dev/null || glusterd
until gluster volume list >/dev/null 2>&1; do sleep 0.2; done
[ -e /srv/state/glusterd/vols/share ] || gluster --mode=script volume create share 10.9.0.1:/srv/share/brick force
gluster volume start share force
""",
        mount="mkdir -p /var/log/glusterfs; mount -t glusterfs -o attribute-timeout=0,entry-timeout=0"
        " 10.9.0.1:/share /media/share",
        memory=320,
    ),
}


def require(name: str) -> None:
    """Skip if a program of this filesystem is missing."""
    share = SHARES[name]
    missing = [program for program in share.programs if shutil.which(program, path=_PATH) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (packages {share.packages})")
