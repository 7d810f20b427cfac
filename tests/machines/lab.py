"""Several machines on one: Linux kernels that run as ordinary processes (user-mode Linux) and share a directory.

Each machine has the host's root, read-only, and a boot id, processes, clocks, kernel locks and a page cache of its own.
Machine 0 serves the directory, and all mount it. A program is told who it is by NODE, and finds the directory at SHARE.
What the machines and the test say to each other are files in OUT, which is on the host: no failure of the network or
of the server touches it.

A machine is a process group of its own, its network is a namespace of the run, and all of it ends with `Lab.end`.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
HERE = Path(__file__).parent
BOOT_WITHIN = 120.0
SERVER_LEASE = 10
"""Seconds after which the NFS server drops the kernel locks of a machine that it does not hear of."""
_NEEDS = ("linux.uml", "exportfs", "mount.nfs", "modprobe", "ip", "unshare")
_INIT = r"""#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc; mount -t sysfs sys /sys
for d in /run /var/lib /srv /media /dev/shm; do mount -t tmpfs tmpfs $d; done
mkdir -p /run/m/lib/modules /var/lib/nfs/v4recovery /var/lib/nfs/sm /var/lib/nfs/rpc_pipefs
mkdir -p /media/out /media/code /media/tests /media/share /srv/share
mount -t hostfs none /media/out -o {out}
exec >/media/out/node-{node}.log 2>&1
mount -t hostfs none /media/code -o {source}
mount -t hostfs none /media/tests -o {here}
ln -s /usr/lib/uml/modules/$(uname -r) /run/m/lib/modules/
for m in af_packet nfsd nfs nfsv3 nfsv4 lockd; do modprobe -d /run/m $m || echo "there is no module $m"; done
hostname node{node}; ip link set lo up; ip addr add 10.9.0.{address}/24 dev eth0; ip link set eth0 up
statd() {{ mkdir -p /run/rpcbind; rpcbind -w 2>/dev/null; rpc.statd 2>/dev/null; }}
if [ {node} = 0 ]; then
    chmod 1777 /srv/share; mount -t nfsd nfsd /proc/fs/nfsd
    echo {lease} > /proc/fs/nfsd/nfsv4leasetime; echo {lease} > /proc/fs/nfsd/nfsv4gracetime
    [ {share} = nfs3 ] && statd
    touch /var/lib/nfs/etab /var/lib/nfs/rmtab
    exportfs -i -o rw,fsid=0,no_root_squash,no_subtree_check,insecure,sync '*:/srv/share'
    if [ {share} = nfs4 ]; then rpc.mountd -N 2 -N 3; rpc.nfsd -N 3 -V 4.2 4; else rpc.mountd; rpc.nfsd 4; fi
    touch /media/out/served
else
    while [ ! -e /media/out/served ]; do sleep 0.1; done
    [ {share} = nfs3 ] && statd
fi
if [ {share} = nfs4 ]; then
    mount -i -t nfs4 -o vers=4.2,addr=10.9.0.1,clientaddr=10.9.0.{address} 10.9.0.1:/ /media/share
else
    mount -t nfs -o vers=3{options} 10.9.0.1:/srv/share /media/share
fi || echo "the directory cannot be mounted"
while sleep 0.05; do
    [ -e /media/out/cut-{node} ] && ip link set eth0 down && rm /media/out/cut-{node}
    [ -e /media/out/mend-{node} ] && ip link set eth0 up && rm /media/out/mend-{node}
done &
export NODE={node} SHARE=/media/share OUT=/media/out PYTHONPATH=/media/code
cd /media/out
touch /media/out/up-{node}
{command}
echo $? > /media/out/.status-{node}; mv /media/out/.status-{node} /media/out/status-{node}
sleep 1000000
"""


def require() -> None:
    """Skip where machines cannot be made."""
    missing = [name for name in _NEEDS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (packages user-mode-linux nfs-kernel-server nfs-common kmod iproute2)")
    if os.geteuid() != 0:
        pytest.skip("needs root: machines get a network of their own")


class Lab:
    """A run of so many machines, each with the same program (a file of this directory) and arguments."""

    def __init__(
        self, out: Path, program: str, *arguments: str, nodes: int = 2, share: str = "nfs4", options: str = ""
    ) -> None:
        self.out = out
        self.share = share
        self._nodes: list[subprocess.Popen[bytes]] = []
        python = getattr(sys, "_base_executable", sys.executable)
        self._command = shlex.join([python, "-u", f"/media/tests/{program}", *arguments])
        self._options = f",{options}" if options else ""
        out.mkdir(parents=True, exist_ok=True)
        self._network = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", "ip link set lo up multicast on; ip route add 224.0.0.0/4 dev lo; echo; cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert self._network.stdout is not None
            self._network.stdout.readline()
            for number in range(nodes):
                self.boot(number)
            for number in range(nodes):
                self.wait(f"up-{number}", BOOT_WITHIN)
        except BaseException:
            self.end()
            raise

    def boot(self, number: int) -> None:
        """Start a machine; again, if it was killed."""
        init = self.out / f"init-{number}"
        words = {"out": self.out, "source": SOURCE, "here": HERE, "node": number, "address": number + 1}
        init.write_text(
            _INIT.format(**words, lease=SERVER_LEASE, share=self.share, options=self._options, command=self._command)
        )
        init.chmod(0o755)
        machine = ["linux.uml", "mem=192M", "root=/dev/root", "rootfstype=hostfs", "ro", f"init={init}"]
        machine += ["eth0=mcast,,239.192.168.1,1102,1", "con=null", "con0=null,fd:2", "quiet"]
        with open(self.out / f"console-{number}", "wb") as console:
            process = subprocess.Popen(
                ["nsenter", f"--net=/proc/{self._network.pid}/ns/net", *machine],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=console,
                start_new_session=True,
                env={**os.environ, "TMPDIR": "/dev/shm"},  # where its memory is, as a file without a name
            )
        self._nodes[number:] = [process, *self._nodes[number + 1 :]]

    def kill(self, number: int) -> None:
        """The machine has lost its power."""
        process = self._nodes[number]
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def tell(self, name: str, text: str = "") -> None:
        """Make a file that the machines wait for."""
        (self.out / f".{name}").write_text(text)
        os.replace(self.out / f".{name}", self.out / name)

    def wait(self, name: str, within: float = 60.0) -> str:
        """What is in a file that a machine makes, as soon as it is there."""
        until = time.monotonic() + within
        path = self.out / name
        while not path.exists():
            assert time.monotonic() < until, f"no {name}:\n{self.logs()}"
            time.sleep(0.02)
        return path.read_text()

    def gone(self, name: str, within: float = 60.0) -> None:
        """Return when a machine has taken such a file away: it has done what that asks for."""
        until = time.monotonic() + within
        while (self.out / name).exists():
            assert time.monotonic() < until, f"{name} is still there:\n{self.logs()}"
            time.sleep(0.02)

    def results(self, nodes: Sequence[int], within: float = 120.0) -> list[str]:
        """The output of the program on each of these machines, which must have ended well."""
        until = time.monotonic() + within
        for number in nodes:
            assert self.wait(f"status-{number}", until - time.monotonic()).strip() == "0", self.logs()
        return [(self.out / f"node-{number}.log").read_text() for number in nodes]

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.out.glob("node-*.log")))

    def end(self) -> None:
        for number in range(len(self._nodes)):
            self.kill(number)
        self._network.kill()
        self._network.communicate()
