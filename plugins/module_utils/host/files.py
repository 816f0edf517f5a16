# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How files of a host are read, written, removed and given away, also in a directory that somebody else owns.

A service account owns the directory that its program writes to. Whoever takes the account over can put a link there,
`myid -> /etc/shadow`, and wait for root to write or read through it. So a path is walked one directory after another,
each held open, and a directory that others than root can change makes all below it foreign:

- No link is followed that is in a foreign directory, or not root's own. On the way it is refused, at the end the link
  itself is replaced.
- What has a second name (a hard link) there may be a file from elsewhere: it is replaced, but neither read nor given
  away.
- Nothing but a plain file is opened, so that a pipe in a file's place stops nobody.

Root's own links are followed, as an operator may keep things elsewhere. Whoever runs this counts as root here, if it is
somebody else. A file is made under a name that cannot be guessed, and takes its place when it is whole.

To read, `read` takes this care and raises what is wrong; `read_foreign_text` does so for what a service keeps, and is
empty instead. `read_text` and `read_bytes` follow every link: they are for files that only root and the kernel write.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Callable

DRAFT = ".baremetal-gpu-"
LINKS_AT_MOST = 40
# What a service keeps in its own directory is a number or a line.
FOREIGN_AT_MOST = 64 << 10
KEEP = -1
_WALK = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOK = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unsafe(OSError):
    """Somebody else than root could have led the way there. `strerror` says who, and what to do."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(errno.ELOOP, text, path)

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


def _is_ours(uid: int) -> bool:
    return uid in (0, os.geteuid())


def _name(lookup: Callable[[int], Sequence[Any]], number: int) -> str:
    try:
        return str(lookup(number)[0])
    except KeyError:
        return str(number)


def _others(directory: int) -> str | None:
    """Who else than root can put links into a directory and turn them; None where nobody can.

    In one with the sticky bit others can add names and change their own; that is seen to name by name.
    """
    status = os.fstat(directory)
    if not _is_ours(status.st_uid):
        return _name(pwd.getpwuid, status.st_uid)
    if status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "everybody"
    if status.st_mode & stat.S_IWGRP and status.st_gid not in (0, os.getegid()):
        return f"the group {_name(grp.getgrgid, status.st_gid)}"
    if status.st_mode & stat.S_IWGRP and _has_access_list(directory):
        # These bits are then what anybody in the list may do at most.
        return "those whom its access list names"
    return None


def _has_access_list(directory: int) -> bool:
    try:
        return bool(os.getxattr(f"/proc/self/fd/{directory}", "system.posix_acl_access"))
    except OSError:
        return False


class Place:
    """`name` in `directory`, which is held open. `whose` says who else than root can change it, None if nobody."""

    def __init__(self, path: str, directory: int, name: str, whose: str | None) -> None:
        self.path, self.directory, self.name = path, directory, name
        mode = os.fstat(directory).st_mode
        shared = mode & stat.S_ISVTX and mode & (stat.S_IWGRP | stat.S_IWOTH)
        self.whose = whose or ("everybody" if shared else None)

    @property
    def real_path(self) -> str:
        """The path without links, as the kernel has it now."""
        return os.path.join(os.readlink(f"/proc/self/fd/{self.directory}"), self.name)

    @property
    def is_foreign(self) -> bool:
        return self.whose is not None

    def status(self) -> os.stat_result | None:
        """What is there, a link not followed; None if nothing is."""
        try:
            return os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self) -> int:
        """A descriptor of the plain file there, to read it or to set its mode and owner.

        :raises FileNotFoundError, Unsafe: also for what is no plain file.
        """
        before = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        self._must_be_plain(before)
        descriptor = os.open(self.name, _LOOK, dir_fd=self.directory)
        try:
            opened = os.fstat(descriptor)
            self._must_be_plain(opened)
            if self.is_foreign:
                # In one look: this name leads to what was opened, and no other name does.
                now = self.status()
                if now is None or not os.path.samestat(now, opened) or now.st_nlink != 1:
                    raise Unsafe(
                        self.path,
                        f"has a second name (a hard link) in a directory that {self.whose} can change, and may be a "
                        "file from elsewhere. To do: remove it",
                    )
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _must_be_plain(self, status: os.stat_result) -> None:
        if stat.S_ISREG(status.st_mode):
            return
        if stat.S_ISLNK(status.st_mode):
            raise self.linked()
        raise Unsafe(self.path, "is not a file. To do: move it away")

    def linked(self) -> Unsafe:
        """What to raise for a link that is not followed."""
        whose = f"in a directory that {self.whose} can change" if self.whose else "that is not root's"
        return Unsafe(self.path, f"is a link {whose}. To do: remove it")

    def read(self, at_most: int | None = None) -> bytes:
        """The content of the plain file there. A larger one than `at_most` bytes is refused."""
        descriptor = self.open()
        with os.fdopen(descriptor, "rb") as file:
            if at_most is None:
                return file.read()
            content = file.read(at_most + 1)
        if len(content) > at_most:
            raise OSError(errno.EFBIG, f"is larger than {at_most} bytes", self.path)
        return content

    def replace(self, content: bytes, mode: int, uid: int = KEEP, gid: int = KEEP, durable: bool = True) -> None:
        """Put a file there in one step; it has its mode and owner from the first byte on."""
        draft = DRAFT + os.urandom(8).hex()
        descriptor = os.open(draft, _MAKE, 0o600, dir_fd=self.directory)
        try:
            try:
                if (uid, gid) != (KEEP, KEEP):
                    os.fchown(descriptor, uid, gid)
                os.fchmod(descriptor, mode)
                rest = memoryview(content)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(draft, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=self.directory)
            raise
        if durable:
            self.sync()

    def link(self, target: str) -> None:
        """Put a link there in one step."""
        draft = DRAFT + os.urandom(8).hex()
        os.symlink(target, draft, dir_fd=self.directory)
        try:
            os.replace(draft, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(draft, dir_fd=self.directory)
            raise

    def remove(self) -> None:
        """Remove what is there, a directory with all that is in it; links are removed and not followed."""
        status = self.status()
        if status is not None and stat.S_ISDIR(status.st_mode):
            # The agent always runs, and removes no directories: it need not hold what unpacks archives.
            import shutil

            shutil.rmtree(f"/proc/self/fd/{self.directory}/{self.name}")
        else:
            os.unlink(self.name, dir_fd=self.directory)

    def make_directory(self) -> None:
        os.mkdir(self.name, 0o700, dir_fd=self.directory)

    def give(self, mode: int | None = None, uid: int = KEEP, gid: int = KEEP) -> None:
        """Set mode and owner of the plain file or directory there."""
        status = self.status()
        if status is not None and stat.S_ISDIR(status.st_mode):
            descriptor = os.open(self.name, _LOOK | os.O_DIRECTORY, dir_fd=self.directory)
        else:
            descriptor = self.open()
        try:
            now = os.fstat(descriptor)
            if (uid, gid) != (KEEP, KEEP):
                os.fchown(descriptor, uid, gid)
            if mode is not None or (uid, gid) != (KEEP, KEEP):
                # A change of the owner takes bits of the mode away.
                os.fchmod(descriptor, stat.S_IMODE(now.st_mode) if mode is None else mode)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """What was renamed in the directory outlasts a power cut."""
        # The directory of somebody else need not be readable for a root without that privilege.
        with contextlib.suppress(PermissionError):
            descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self.directory)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def clean(self) -> None:
        """Remove drafts that a process which was killed has left. For the only writer of a directory."""
        with os.scandir(f"/proc/self/fd/{self.directory}") as entries:
            drafts = [
                one.name for one in entries if one.name.startswith(DRAFT) and not one.is_dir(follow_symlinks=False)
            ]
        for name in drafts:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self.directory)


@contextlib.contextmanager
def place(path: str, follow: bool = False) -> Iterator[Place]:
    """Where a path leads. With `follow` a link at its end is followed too, if it is root's.

    :raises Unsafe: where the way leads through a link that others can turn. OSError where there is no such way.
    """
    path = os.path.abspath(path)
    directory, name, whose = _walk(path, follow)
    try:
        yield Place(path, directory, name, whose)
    finally:
        os.close(directory)


def _walk(path: str, follow: bool) -> tuple[int, str, str | None]:
    waiting = path.split("/")[::-1]
    here, links = os.open("/", _WALK), 0
    try:
        whose = _others(here)
        while True:
            name = waiting.pop()
            if name in ("", "."):
                if not waiting:
                    return here, ".", whose
                continue
            status = None
            with contextlib.suppress(FileNotFoundError):
                status = os.stat(name, dir_fd=here, follow_symlinks=False)
            at_end = not any(part not in ("", ".") for part in waiting)
            if status is not None and stat.S_ISLNK(status.st_mode):
                # Also where the directory was somebody's before it became root's.
                own = whose is None and _is_ours(status.st_uid)
                if at_end and not (follow and own):
                    return here, name, whose
                if not own:
                    raise Unsafe(
                        path,
                        f"the way leads through the link {name}, which {whose or _name(pwd.getpwuid, status.st_uid)} "
                        "can turn. To do: put a directory in its place, or name the path that it stands for",
                    )
                links += 1
                if links > LINKS_AT_MOST:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(name, dir_fd=here)
                waiting += target.split("/")[::-1]
                if target.startswith("/"):
                    here, whose = _step("/", here, None)
                continue
            if at_end:
                return here, name, whose
            here, whose = _step(name, here, whose)
    except BaseException as error:
        os.close(here)
        if isinstance(error, OSError) and not isinstance(error, Unsafe):
            error.filename = path
        raise


def _step(name: str, here: int, whose: str | None) -> tuple[int, str | None]:
    """Into a directory; the one before is closed. What is below a foreign one stays foreign."""
    there = os.open(name, _WALK, dir_fd=here)
    os.close(here)
    return there, whose or _others(there)


def check(path: str) -> None:
    """Before a path is given to a program that follows links: every link on the way, and at its end, is root's own.

    :raises Unsafe: otherwise.
    """
    with contextlib.suppress(FileNotFoundError), place(path, follow=True) as there:
        status = there.status()
        if status is not None and stat.S_ISLNK(status.st_mode):
            raise there.linked()


@contextlib.contextmanager
def labelled(module: Any, path: str) -> Iterator[None]:
    """What is replaced keeps its SELinux label, and what is new gets that of the policy. `module`: AnsibleModule."""
    context = None
    if module.selinux_enabled():
        there = os.path.lexists(path)
        context = module.selinux_context(path) if there else module.selinux_default_context(path)
    yield
    if context:
        module.set_context_if_different(path, context, False)


def write(
    path: str,
    content: str | bytes,
    mode: int | None = 0o644,
    uid: int = KEEP,
    gid: int = KEEP,
    *,
    durable: bool = True,
    follow: bool = False,
) -> None:
    """Replace a file in one step; a reader sees the old content or the new one, never a part.

    With `durable` the new content is on the disk when this returns. Without, a power cut may bring the old one back.
    With `follow` the file behind root's own link is replaced, otherwise the link. Without a mode it has that, and the
    owner, of the file before, or 0644. Raises OSError, Unsafe among them.
    """
    with place(path, follow) as there:
        if mode is None:
            status = there.status()
            mode = 0o644
            if status is not None and stat.S_ISREG(status.st_mode):
                mode = stat.S_IMODE(status.st_mode)
                uid, gid = (status.st_uid if uid == KEEP else uid), (status.st_gid if gid == KEEP else gid)
        there.replace(content.encode("utf-8") if isinstance(content, str) else content, mode, uid, gid, durable)


def read(path: str, at_most: int | None = None) -> bytes:
    """The content of a plain file. Root's own links are followed. Raises OSError, Unsafe among them."""
    with place(path, follow=True) as there:
        return there.read(at_most)


def read_foreign_text(path: str) -> str:
    """The text of a small file that a service keeps in its own directory, where somebody may have planted another
    file's name; empty if it cannot be read, or may not be what it seems."""
    try:
        return read(path, FOREIGN_AT_MOST).decode("utf-8", "replace")
    except OSError:
        return ""


def read_text(path: str, at_most: int = -1) -> str:
    """The text of a plain file, or the first `at_most` characters of it; empty if it cannot be read, or is none: a pipe
    in its place would never end."""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=_without_waiting) as file:
            return file.read(at_most) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except OSError:
        return ""


def read_bytes(path: str) -> bytes:
    """The content of a plain file; empty as that of `read_text`."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""
    except OSError:
        return b""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)


def remove(path: str) -> None:
    """Remove a file, a link, or a directory with all in it. Raises OSError, also where nothing is there."""
    with place(path) as there:
        there.remove()


def make_directories(path: str, mode: int = 0o755, uid: int = KEEP, gid: int = KEEP) -> bool:
    """Make a directory with this mode and owner; whether it was missing.

    Those above it that are missing become the caller's own with 0755: who has the parent can swap what is in it.
    """
    path = os.path.abspath(path)
    try:
        with place(path, follow=True) as there:
            status = there.status()
            if status is not None:
                if stat.S_ISLNK(status.st_mode):
                    raise there.linked()
                if not stat.S_ISDIR(status.st_mode):
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                return False
            with contextlib.suppress(FileExistsError):
                there.make_directory()
            there.give(mode, uid, gid)
            return True
    except FileNotFoundError:
        if os.path.dirname(path) == path or not make_directories(os.path.dirname(path)):
            raise
    return make_directories(path, mode, uid, gid)


def handed_down(path: str, mode: int, uid: int, gid: int) -> list[str]:
    """The directories above one that have its mode and its owner, who is not root; the highest first."""
    found: list[str] = []
    path = os.path.dirname(os.path.abspath(path))
    while uid > 0:
        try:
            with place(path, follow=True) as there:
                status = there.status()
        except OSError:
            break
        if status is None or not stat.S_ISDIR(status.st_mode):
            break
        if (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) != (mode, uid, gid):
            break
        found.insert(0, path)
        path = os.path.dirname(path)
    return found


def put_aside(path: str, at_most: int = 5) -> str | None:
    """Give what cannot be read another name, and tell it. Earlier ones stay; only the last of many is replaced.

    None where that is not possible, or nothing is there.
    """
    for number in range(1, at_most + 1):
        aside = f"{path}.unreadable" + (f".{number}" if number > 1 else "")
        if os.path.lexists(aside) and number < at_most:
            continue
        try:
            os.replace(path, aside)
        except OSError:
            return None
        return aside
    return None
