"""The files of a simulated process: the part of the environment that opens, names, reads and writes them."""

from __future__ import annotations

import errno
import stat

from ..._platform.interface import CHANGED
from .base import BaseProcess, Crash
from .footprint import Footprint, both
from .kernel import UNLOCKED, File, Inode

_FULL = (errno.ENOSPC, "No space left on device")


class SimStat:
    """What `stat` says."""

    __slots__ = ("st_dev", "st_ino", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")

    def __init__(self, inode: Inode, device: int) -> None:
        self.st_mode = inode.mode
        self.st_dev = device
        self.st_ino = inode.number
        self.st_nlink = inode.links
        self.st_size = len(inode.data)
        self.st_uid = 0
        self.st_mtime = inode.mtime


class FileProcess(BaseProcess):
    """A process with files."""

    # -- files: opening ------------------------------------------------------------------------------------------------

    def _install(self, inode: Inode, path: str, *, writable: bool) -> int:
        mount = self.mount
        domain = (mount.domain, path) if mount.lock_by_name else mount.domain
        fd = self._next_fd
        self._next_fd += 1
        self.files[fd] = File(inode, domain, writable=writable, by_name=bool(path))
        return fd

    def open_unnamed(self, directory: str, mode: int) -> int:
        if not self.mount.unnamed:
            raise OSError(errno.EOPNOTSUPP, "no unnamed files here", directory)
        self.kernel.lookup(directory)
        return self._install(self.kernel.new_inode(stat.S_IFREG | mode, private=True), "", writable=True)

    def _addition(self, path: str) -> Footprint:
        """Of making a name."""
        kernel = self.kernel
        parent = kernel.names.get(path.rpartition("/")[0])
        touched = kernel.name_mark(path).w
        if parent is not None and parent.inside is not None:
            touched = both(touched, both(parent.mark.r, parent.inside.i))
        return touched

    def _at(self, name: str, dir_fd: int | None) -> str:
        """The path of a name in an open directory."""
        return name if dir_fd is None else f"{self.directories[dir_fd][0]}/{name}"

    def _require(self, path: str, dir_fd: int | None) -> None:
        """The open directory must be there still: nothing is in one that was removed, and nothing gets there."""
        if dir_fd is not None:
            where, inode = self.directories[dir_fd]
            if self.kernel.names.get(where) is not inode:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)

    def open_directory(self, path: str) -> int:
        self.step("open_directory", path, self.kernel.name_mark(path).r)
        inode = self.kernel.lookup(path)
        if inode.entries is None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        fd = self._install(inode, path, writable=False)
        self.directories[fd] = (path, inode)
        return fd

    def open_new(self, path: str, mode: int, *, dir_fd: int | None = None) -> int:
        path = self._at(path, dir_fd)
        self.step("open_new", path, self._addition(path))
        self._require(path, dir_fd)
        if self.kernel.full:
            raise OSError(*_FULL, path)
        return self._install(self.kernel.add(path, stat.S_IFREG | mode), path, writable=True)

    def open_existing(self, path: str, *, write: bool, dir_fd: int | None = None) -> int:
        path = self._at(path, dir_fd)
        self.step("open_to_write" if write else "open_to_read", path, self.kernel.name_mark(path).r)
        self._require(path, dir_fd)
        inode = self.kernel.lookup(path)
        if write and inode.entries is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return self._install(inode, path, writable=write)

    def close(self, fd: int) -> None:
        file = self.files.get(fd)
        if file is None:
            if self.dead:
                raise Crash
            self.pidfds.pop(fd, None)
            return
        inode, kernel = file.inode, self.kernel
        self.directories.pop(fd, None)
        if not inode.private and (file.kind != UNLOCKED or file.writable or kernel.readers_matter):
            self.step("close", fd, inode.mark.w)
        del self.files[fd]
        kernel.close(file)

    # -- files: names --------------------------------------------------------------------------------------------------

    def link_unnamed(self, fd: int, path: str) -> None:
        self.step("link_unnamed", path, both(self._addition(path), self.files[fd].inode.mark.w))
        if self.kernel.full:
            raise OSError(*_FULL, path)
        self.kernel.add(path, 0, self.files[fd].inode)

    def link(self, existing: str, path: str) -> None:
        kernel = self.kernel
        if not self.mount.link:
            raise OSError(errno.EOPNOTSUPP, "no links here", path)
        inode = kernel.names.get(existing)
        touched = both(kernel.name_mark(existing).r, self._addition(path))
        self.step("link", path, touched if inode is None else both(touched, inode.mark.w))
        kernel.add(path, 0, kernel.lookup(existing))

    def _seen(self, path: str, touched: Footprint) -> Footprint:
        """Of a step that touches what the path names."""
        return both(self.kernel.name_mark(path).r, touched)

    def _removal(self, path: str) -> Footprint:
        """Of taking a name away."""
        kernel = self.kernel
        touched, inode = self._addition(path), kernel.names.get(path)
        if inode is None:
            return kernel.name_mark(path).r
        touched = both(touched, inode.mark.w)
        return touched if inode.inside is None else both(touched, inode.inside.r)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        path = self._at(path, dir_fd)
        self.step("unlink", path, self._removal(path))
        self._require(path, dir_fd)
        if self.kernel.lookup(path).entries is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        self.kernel.remove(path)

    def rename(self, old: str, new: str) -> None:
        """Not the engine's: other implementations publish so."""
        self.step("rename", new, both(self._removal(old), both(self._removal(new), self._addition(new))))
        self.kernel.rename(old, new)

    def open_over(self, path: str) -> int:
        """O_CREAT|O_TRUNC. Not the engine's: the beads writer does so."""
        self.step("open_over", path, both(self._removal(path), self._addition(path)))
        inode = self.kernel.names.get(path)
        if inode is None:
            inode = self.kernel.add(path, stat.S_IFREG | 0o644)
        elif self.kernel.on_unnamed is not None:
            self.kernel.on_unnamed(inode, path)
        inode.data, inode.mtime = b"", self.time()
        return self._install(inode, path, writable=True)

    def make_directory(self, path: str, mode: int) -> None:
        self.step("make_directory", path, self._addition(path))
        if self.kernel.full:
            raise OSError(*_FULL, path)
        self.kernel.add(path, stat.S_IFDIR | mode)

    def make_directories(self, directory: str) -> None:
        if directory not in self.kernel.names:
            self.make_directory(directory, 0o755)

    def remove_directory(self, path: str) -> None:
        self.step("remove_directory", path, self._removal(path))
        entries = self.kernel.lookup(path).entries
        if entries is None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        if entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self.kernel.remove(path)

    def list_directory(self, directory: str | int) -> list[str]:
        kernel, opened = self.kernel, None
        if isinstance(directory, int):
            directory, opened = self.directories[directory]
        inode = kernel.names.get(directory)
        touched = kernel.name_mark(directory).r
        self.step("list", directory, touched if inode is None or not inode.inside else both(touched, inode.inside.r))
        if opened is not None and kernel.names.get(directory) is not opened:
            return []  # it was removed, so it was empty
        entries = kernel.lookup(directory).entries
        if entries is None:
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", directory)
        return sorted(entries)

    def exists(self, path: str) -> bool:
        self.step("exists", path, self.kernel.name_mark(path).r)
        return path in self.kernel.names

    def stat(self, path: str, *, dir_fd: int | None = None) -> SimStat:
        kernel = self.kernel
        path = self._at(path, dir_fd)
        inode, touched = kernel.names.get(path), kernel.name_mark(path).r
        self.step("stat", path, touched if inode is None else both(touched, inode.mark.r))
        self._require(path, dir_fd)
        return SimStat(kernel.lookup(path), self.mount.device)

    # -- files: content ------------------------------------------------------------------------------------------------

    def fstat(self, fd: int) -> SimStat:
        inode = self.files[fd].inode
        if not inode.private:
            self.step("fstat", fd, inode.mark.r)
        return SimStat(inode, self.mount.device)

    def read(self, fd: int, size: int) -> bytes:
        inode = self.files[fd].inode
        if not inode.private:
            self.step("read", fd, inode.mark.r)
        if inode.entries is not None:
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        self.last_read = (inode.number, inode.data[:size])
        return inode.data[:size]

    def write(self, fd: int, data: bytes, offset: int) -> int:
        inode = self.files[fd].inode
        if not inode.private:
            self.step("write", data, inode.mark.w)
        old = inode.data
        if self.kernel.full and not old and data:
            raise OSError(*_FULL)  # the first block of a file is what there is no room for
        if old and not offset:
            inode.history.append(old)
        inode.data = old[:offset] + data + old[offset + len(data) :]
        inode.mtime = self.time()
        return len(data)

    def truncate(self, fd: int, size: int) -> None:
        inode = self.files[fd].inode
        if not self.files[fd].writable:
            raise OSError(errno.EINVAL, "not open for writing")
        self.step("truncate", fd, inode.mark.w)
        inode.data, inode.mtime = inode.data[:size], self.time()

    def chmod(self, fd: int, mode: int) -> None:
        inode = self.files[fd].inode
        self.step("chmod", fd, inode.mark.w)
        inode.mode = stat.S_IFMT(inode.mode) | mode
        self.kernel.tell(inode, CHANGED)

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, directory: str) -> None:
        pass

    def open_limit(self) -> int | None:
        return None
