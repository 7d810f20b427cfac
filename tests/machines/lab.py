"""Several machines on one: Linux kernels that run as ordinary processes (user-mode Linux) and share a directory.

Each machine has the host's root, read-only, and a boot id, processes, clocks, kernel locks and a page cache of its own.
Machine 0 serves the directory (shares.py), and all mount it. A program learns by NODE on which machine it is, and finds
the directory at SHARE.

The machines and the test communicate by files in OUT, which is on the host: no failure of the network or of the server
touches it.

A machine is a process group of its own. Its network is a namespace of the run, and so are its processes: these end with
the first one, which ends when nobody has its input open any more. So nothing outlives a run that is killed.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from . import shares

SOURCE = Path(__file__).parents[2] / "src"
HERE = Path(__file__).parent
BOOT_WITHIN = 240.0
SERVER_LEASE = 10
"""Seconds after which the NFS server drops the kernel locks of a silent machine."""
_NEEDS = ("linux.uml", "modprobe", "ip", "unshare", "mke2fs")
_DISK = "96M"
"""Size of the disk of the shared directory. It is on the host, and outlives the kernel of machine 0."""
_FIRST = "ip link set lo up multicast on; ip route add 224.0.0.0/4 dev lo; echo; cat"
_INIT = r"""#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run PYTHONDONTWRITEBYTECODE=1
mount -t proc proc /proc; mount -t sysfs sys /sys
mkdir -p /dev/shm
for d in /run /tmp /var/lib /var/log /srv /media /dev/shm; do mount -t tmpfs tmpfs $d; done
mkdir -p /run/m/lib/modules /var/log/samba /var/lib/nfs/sm /var/lib/nfs/rpc_pipefs /var/lib/glusterd
mkdir -p /media/out /media/code /media/tests /media/share
mount -t hostfs none /media/out -o {out}
exec >>/media/out/node-{node}.log 2>&1
mount -t hostfs none /media/code -o {source}
mount -t hostfs none /media/tests -o {here}
ln -s /usr/lib/uml/modules/$(uname -r) /run/m/lib/modules/
for m in af_packet {modules}; do modprobe -q -d /run/m $m || echo "there is no module $m"; done
for n in 0 1 2 3; do echo "10.9.0.$((n+1)) node$n"; done > /run/hosts; echo "127.0.0.1 localhost" >> /run/hosts
mount --bind /run/hosts /etc/hosts; : > /run/resolv.conf; mount --bind /run/resolv.conf /etc/resolv.conf
hostname node{node}; ip link set lo up; ip addr add 10.9.0.{address}/24 dev eth0; ip link set eth0 up
export ADDRESS={address} LEASE={lease} OPTIONS={options}
serve() {{
{serve}
}}
mount_share() {{
{mount}
}}
if [ {node} = 0 ]; then
    mknod /run/disk b 98 0; mount /run/disk /srv || echo "the disk cannot be mounted"
    mkdir -p /srv/share /srv/state; chmod 1777 /srv/share
    serve && touch /media/out/served || echo "the directory cannot be served"
fi
while [ ! -e /media/out/served ]; do sleep 0.1; done
i=0; until mount_share; do i=$((i+1)); [ $i = 20 ] && echo "the directory cannot be mounted" && break; sleep 0.3; done
asked() {{ [ -e /media/out/$1-{node} ] && rm /media/out/$1-{node}; }}
while sleep 0.05; do
    asked cut && ip link set eth0 down
    asked mend && ip link set eth0 up
done </dev/null &
export NODE={node} BOOT={boot} SHARE=/media/share OUT=/media/out PYTHONPATH=/media/code
cd /media/out
touch /media/out/up-{node}
{command}
echo $? > /media/out/.status-{node}; mv /media/out/.status-{node} /media/out/status-{node}
sleep 1000000
"""


def require(share: str) -> None:
    """Skip if machines cannot be made, or this filesystem cannot be served."""
    missing = [name for name in _NEEDS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (packages user-mode-linux kmod iproute2 e2fsprogs)")
    shares.require(share)
    if os.geteuid() != 0:
        pytest.skip("needs root: machines get a network of their own")
    if not runs_programs():
        pytest.skip("user-mode Linux runs no program on this processor: its state is more than that kernel can restore")


@functools.cache
def runs_programs() -> bool:
    """Whether the first program of a machine survives: Linux 6.1 kills it at once if the processor has AMX."""
    machine = "linux.uml mem=192M rootfstype=hostfs ro init=/bin/true con=null con0=null,fd:2"
    command = ["unshare", "-p", "--fork", "--kill-child", "sh", "-c", f"{machine}; :"]  # process 1 cannot abort
    environment = {**os.environ, "TMPDIR": "/dev/shm"}
    tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=BOOT_WITHIN)
    return b"exitcode=0x0000000b" not in tried.stderr  # SIGSEGV


class Lab:
    """A run of that many machines, each with the same program (a file of this directory) and arguments."""

    def __init__(
        self, out: Path, program: str, *arguments: str, nodes: int = 2, share: str = "nfs4", options: str = ""
    ) -> None:
        self.out = out
        self.share = shares.SHARES[share]
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._boots = [0] * nodes
        python = getattr(sys, "_base_executable", sys.executable)
        self._command = shlex.join([python, "-u", f"/media/tests/{program}", *arguments])
        self._options = f",{options}" if options else ""
        out.mkdir(parents=True, exist_ok=True)
        disk = ["mke2fs", "-q", "-t", "ext4", out / "disk", _DISK]
        subprocess.run(disk, check=True, timeout=60, stdout=subprocess.DEVNULL)
        self._network = subprocess.Popen(
            ["unshare", "-n", "-p", "--fork", "--kill-child", "sh", "-c", _FIRST],
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
        for name in (f"up-{number}", f"status-{number}", *(["served"] if number == 0 else [])):
            (self.out / name).unlink(missing_ok=True)
        init = self.out / f"init-{number}"
        share = self.share
        self._boots[number] += 1
        init.write_text(
            _INIT.format(
                out=self.out, source=SOURCE, here=HERE, node=number, address=number + 1, boot=self._boots[number],
                modules=share.modules, serve=share.serve, mount=share.mount, options=shlex.quote(self._options),
                lease=SERVER_LEASE, command=self._command,
            )
        )  # fmt: skip
        init.chmod(0o755)
        machine = ["linux.uml", f"mem={share.memory}M", "root=/dev/root", "rootfstype=hostfs", "ro", f"init={init}"]
        machine += ["eth0=mcast,,239.192.168.1,1102,1", "con=null", "con0=null,fd:2", "quiet"]
        if number == 0:
            machine.append(f"ubd0={self.out / 'disk'}")
        spaces = f"/proc/{self._network.pid}/ns"
        with open(self.out / f"console-{number}", "ab") as console:
            process = subprocess.Popen(
                ["nsenter", f"--net={spaces}/net", f"--pid={spaces}/pid_for_children", *machine],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=console,
                start_new_session=True,
                env={**os.environ, "TMPDIR": "/dev/shm"},  # where its memory is, as a file without a name
            )
        self.nodes[number:] = [process, *self.nodes[number + 1 :]]

    def kill(self, number: int) -> None:
        """Kill a machine, as a loss of power would."""
        process = self.nodes[number]
        if process.poll() is None:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
            for kernel in map(int, children.split()):
                os.killpg(os.getpgid(kernel), signal.SIGKILL)
        process.wait()
        self.tell(f"killed-{number}.{self._boots[number]}")

    def tell(self, name: str, text: str = "") -> None:
        """Create a file that the machines wait for."""
        (self.out / f".{name}").write_text(text)
        os.replace(self.out / f".{name}", self.out / name)

    def wait(self, name: str, within: float = 60.0) -> str:
        """The content of a file that a machine creates, as soon as it is there."""
        path = self.out / name
        self.wait_until(path.exists, f"no {name}", within)
        return path.read_text()

    def gone(self, name: str, within: float = 60.0) -> None:
        """Wait until a machine has removed such a file, and so done what it asks for."""
        self.wait_until(lambda: not (self.out / name).exists(), f"{name} is still there", within)

    def wait_until(self, holds: Callable[[], bool], otherwise: str, within: float) -> None:
        until = time.monotonic() + within
        while not holds():
            assert time.monotonic() < until, f"{otherwise}:\n{self.logs()}"
            time.sleep(0.02)

    def results(self, nodes: Sequence[int], within: float = 120.0) -> list[str]:
        """The output of the program on each of these machines, which must have ended with status 0."""
        until = time.monotonic() + within
        for number in nodes:
            assert self.wait(f"status-{number}", until - time.monotonic()).strip() == "0", self.logs()
        return [(self.out / f"node-{number}.log").read_text() for number in nodes]

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in sorted(self.out.glob("node-*.log")))

    def end(self) -> None:
        self._network.kill()
        self._network.communicate()
        for process in self.nodes:
            process.wait()
