# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Images of a registry in jobs of Slurm: `gpu-image run IMAGE PROGRAM…` within a job.

An image is unpacked once for each user and node, as a bundle of the OCI runtime, on a disk of the node. All of it is
done with the rights of the user. In the container the user is who they are outside, with the home and the data, and can
write everywhere. `save` makes an image of what was changed, and pushes it with the user's own login.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.images import session
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import container

NAME = "gpu-image"
SETTINGS = "/etc/baremetal-gpu/images.json"
# What a user names: HOST[:PORT]/REPOSITORY[:TAG][@DIGEST].
IMAGE = re.compile(
    r"(?P<repository>[a-z0-9][a-z0-9.-]{0,252}(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)+)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
BYTES_AT_MOST = 4 << 20
# What has to be free beside what an image unpacks to, and how much that is of what is fetched.
SPARE, GROWS = 1 << 30, 3
LABELS = "baremetal.gpu.session"
# Locks beside a bundle: of who makes or saves it, and of all whose jobs run in it.
MAKING, USED = ".lock", ".used"
DIRECTORY, PLACE, DAYS = "/var/lib/baremetal-gpu/bundles", "gpu-images-", 14

# Of a bundle that is being made: the name of the bundle, and something that nobody else has.
PART = ".part-"
# By these the mounts of the node are known among those of the runtime.
OWN_OPTIONS = ["rbind", "nosuid", "nodev"]
# What a container has of the node beside the home and the data: others are known by their names there, too.
HOSTS = "/etc/hosts"

Call = Callable[[Sequence[str]], str]


def call(argv: Sequence[str]) -> str:
    """Standard output of a program, whose standard error the user reads. Raises Refused."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    except OSError as why:
        remedy = "have an administrator set slurm_common_containers and run `gpuops up --tags slurm`"
        raise Refused(f"{argv[0]} is not on this host: {why.strerror}", remedy, code="no_program") from None
    if done.returncode:
        raise Refused(
            f"{' '.join(argv[:2])} ended with {done.returncode}",
            "read what it said above: log in with `skopeo login` where the image is not public",
            code="program_failed",
        )
    return done.stdout.decode("utf-8", "replace")


class Images:
    """The bundles of one user on one node.

    :param directory: below it is the user's own, on a disk of the node.
    :param mounts: what a container has of the node beside the home, such as /datasets.
    :param say: tells the user what is done now, where that takes long.
    """

    def __init__(
        self,
        directory: str,
        mounts: Sequence[str],
        run: Call = call,
        say: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.user = pwd.getpwuid(os.getuid())
        self.mounts, self.run, self.say = list(mounts), run, say
        self.place = os.path.join(directory, f"{PLACE}{self.user.pw_name}")

    def bundle(self, image: str) -> str:
        """The bundle of an image, made if it is not there. Raises Refused and OSError."""
        exact = self._exact(image)
        self._own_place()
        target = self._path(exact)
        with self._locked(target):
            if os.path.isdir(target):
                # The node may have other mounts by now. What runs in it has read its configuration.
                self._write_config(target)
                # What is used is not removed.
                os.utime(target)
                return target
            with self._work(target) as work:
                self._need_space(exact)
                layout, made = self._fetch(exact, work), os.path.join(work, "bundle")
                self.run(["umoci", "--log=error", "unpack", "--rootless", "--image", layout, made])
                self._adapt(made, exact)
                os.rename(made, target)
        return target

    def save(self, image: str, target: str) -> str:
        """Push what was changed in the bundle of an image as another image; its name with the digest."""
        exact, wanted = self._exact(image), _parsed(target)
        if wanted["digest"]:
            raise Refused(f"{target} has a digest", "name the new image, such as HOST:PORT/USER/NAME:TAG")
        self._own_place()
        path = self._path(exact)
        if not os.path.isdir(path):
            raise Refused(f"nothing of {image} is on this node", "save it on the node on which you have changed it")
        name = f"{wanted['repository']}:{wanted['tag'] or 'latest'}"
        with self._locked(path), self._work(path) as work:
            self.say(f"fetching {exact}")
            layout = self._fetch(exact, work)
            self.say("packing what was changed")
            masked = [word for one in self._not_saved(path) for word in ("--mask-path", one)]
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            told = ["--history.created", moment, "--history.created_by", f"{NAME} save"]
            self.run(["umoci", "--log=error", "repack", *masked, *told, "--image", layout, path])
            labels = {"from": exact, "user": self.user.pw_name, "host": os.uname().nodename, "when": moment}
            words = [word for key, value in labels.items() for word in ("--config.label", f"{LABELS}.{key}={value}")]
            self.run(["umoci", "--log=error", "config", "--no-history", "--image", layout, *words])
            digest = os.path.join(work, "digest")
            self.say(f"pushing {name}")
            self.run(["skopeo", "copy", "--quiet", f"--digestfile={digest}", f"oci:{layout}", f"docker://{name}"])
            return f"{wanted['repository']}@{host_files.read(digest, 100).decode('ascii').strip()}"

    def _exact(self, image: str) -> str:
        """The image by its digest, which the registry is asked for where it is not given."""
        found = _parsed(image)
        digest = found["digest"]
        if not digest:
            name = f"{found['repository']}:{found['tag'] or 'latest'}"
            digest = self.run(["skopeo", "inspect", "--format={{.Digest}}", f"docker://{name}"]).strip()
        exact = f"{found['repository']}@{digest}"
        _parsed(exact)
        return exact

    def _path(self, exact: str) -> str:
        return os.path.join(self.place, exact.rpartition(":")[2][:32])

    def _fetch(self, exact: str, work: str) -> str:
        """The image as umoci names it, in a layout of OCI."""
        layout = f"{os.path.join(work, 'layout')}:image"
        self.run(["skopeo", "copy", "--quiet", f"docker://{exact}", f"oci:{layout}"])
        return layout

    def _own_place(self) -> None:
        """The user's directory. In one that everybody writes to, somebody else may have taken its name; then the user
        has one with another name."""
        directory, name = os.path.split(self.place)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.place, 0o700)
        if not _is_private(self.place):
            others = (
                os.path.join(directory, one) for one in sorted(os.listdir(directory)) if one.startswith(f"{name}.")
            )
            self.place = next(filter(_is_private, others), "") or tempfile.mkdtemp(prefix=f"{name}.", dir=directory)

    @contextlib.contextmanager
    def _locked(self, target: str) -> Iterator[None]:
        """One job of the user at a time makes a bundle; the others wait for it."""
        descriptor = os.open(f"{target}{MAKING}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _work(self, target: str) -> tempfile.TemporaryDirectory[str]:
        """A directory to make a bundle in; those that killed jobs have left are removed, which takes their space."""
        for name in os.listdir(self.place):
            of = name[len(PART) :].rpartition("-")[0]
            if name.startswith(PART) and (of == os.path.basename(target) or not self._is_being_made(of)):
                _remove(self.place, name)
        return tempfile.TemporaryDirectory(prefix=f"{PART}{os.path.basename(target)}-", dir=self.place)

    def _is_being_made(self, of: str) -> bool:
        return bool(of) and _is_held(os.path.join(self.place, f"{of}{MAKING}"))

    def _need_space(self, exact: str) -> None:
        told = bounded_json.parse_object(self.run(["skopeo", "inspect", "--raw", f"docker://{exact}"]))
        layers = told.get("layers")
        if not isinstance(layers, list):
            raise Refused(f"{exact} is for several architectures", "name the image of this one by its digest")
        needed = SPARE + GROWS * sum(int(row["size"]) for row in layers)
        free = shutil.disk_usage(self.place).free
        if free < needed:
            raise Refused(
                f"{self.place} on {os.uname().nodename} has {free >> 20} MiB free, and {needed >> 20} are needed",
                f"remove what you do not need with `{NAME} remove`, or ask the operators",
                code="no_space",
            )

    def _adapt(self, bundle: str, exact: str) -> None:
        """Have the user be who they are outside, with the home and the data of the node."""
        root = os.path.join(bundle, "rootfs")
        self._write_config(bundle)
        host_files.write(os.path.join(bundle, "image"), f"{exact}\n", mode=0o600)
        row = self.user
        line = f"{row.pw_name}:x:{row.pw_uid}:{row.pw_gid}:{row.pw_gecos}:{row.pw_dir}:/bin/sh\n"
        _append(root, "passwd", row.pw_name, row.pw_uid, line)
        _append(root, "group", row.pw_name, row.pw_gid, f"{row.pw_name}:x:{row.pw_gid}:\n")

    def _write_config(self, bundle: str) -> None:
        config = os.path.join(bundle, "config.json")
        before = bounded_json.parse_object(host_files.read(config, BYTES_AT_MOST))
        after = adapted(before, self.user.pw_uid, self.user.pw_gid, [self.user.pw_dir, *self.mounts])
        if after != before:
            host_files.write(config, json.dumps(after), mode=0o600)

    def _not_saved(self, bundle: str) -> Iterator[str]:
        """Paths that belong to the node or the user and not to an image."""
        yield from ("/etc/passwd", "/etc/group", self.user.pw_dir, *self.mounts)
        yield from (f"/{place}" for place in session.PLACES)
        told = bounded_json.parse_object(host_files.read(os.path.join(bundle, "config.json"), BYTES_AT_MOST))
        yield from (str(row["destination"]) for row in told["mounts"])
        yield from _of_gpus()
        root = os.path.join(bundle, "rootfs")
        links = session.Links(root)
        for directory, directories, names in os.walk(root):
            below = os.path.relpath(directory, root)
            for name in [*directories, *names]:
                path = name if below == "." else f"{below}/{name}"
                if session.is_left_out(path) or path in links:
                    yield f"/{path}"
                    if name in directories:
                        directories.remove(name)

    def remove(self) -> int:
        """Remove all bundles of the user on this node; how many."""
        self._own_place()
        return sum(_remove(self.place, name) for name in os.listdir(self.place))

    def hold(self, path: str) -> None:
        """Whoever removes what is unused sees that a bundle is used, until the program of this process ends.

        It is another lock than that of whoever makes a bundle, who would wait for all jobs that use it.
        """
        descriptor = os.open(f"{path}{USED}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.set_inheritable(descriptor, True)


def _is_private(path: str) -> bool:
    """Whether it is a directory of this process' user, which nobody else opens."""
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077


def _remove(place: str, name: str) -> bool:
    path = os.path.join(place, name)
    if name.endswith((MAKING, USED)):
        return False
    # A layer may have directories that its owner cannot write to.
    subprocess.run(["chmod", "-R", "u+rwX", "--", path], check=False, stderr=subprocess.DEVNULL)
    shutil.rmtree(path)
    return True


def expire(place: str, days: float, now: float) -> list[str]:
    """Remove the bundles of this process' user that nobody has used for so long; their paths."""
    removed = []
    for name in sorted(os.listdir(place)):
        path = os.path.join(place, name)
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode) and now - status.st_mtime >= days * 86400 and not _is_held(f"{path}{USED}"):
            _remove(place, name)
            removed.append(path)
    return removed


def expire_all(directory: str, program: str) -> int:
    """The same for all users, each with their own rights, because what is there is theirs; the exit status."""
    worst = 0
    for name in sorted(os.listdir(directory)):
        status = os.lstat(os.path.join(directory, name))
        if name.startswith(PLACE) and stat.S_ISDIR(status.st_mode) and status.st_uid:
            argv = [program, "expire", os.path.join(directory, name)]
            rights: dict[str, Any] = {"user": status.st_uid, "group": status.st_gid, "extra_groups": []}
            worst = max(worst, abs(subprocess.run(argv, check=False, cwd="/", **rights).returncode))
    return worst


def _is_held(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _parsed(image: str) -> Mapping[str, Any]:
    found = IMAGE.fullmatch(image)
    if not found:
        raise Refused(
            f"{one_line(image, 200)!r} is not an image of a registry",
            "give HOST:PORT/NAME:TAG or HOST:PORT/NAME@sha256:…",
            code="no_image",
        )
    return found.groupdict()


def _of_gpus() -> Iterator[str]:
    """Where the driver's files are mounted in a container with GPUs."""
    try:
        told = bounded_json.parse_object(host_files.read(container.SPECIFICATION, container.SIZE_AT_MOST))
        yield from (str(row["containerPath"]) for row in told["containerEdits"]["mounts"])
    except (OSError, *bounded_json.MISSHAPEN):
        return


def _append(root: str, name: str, word: str, number: int, line: str) -> None:
    """Have a user or a group be known by its name. The image's own file may lead anywhere, so it is replaced."""
    path = os.path.join(root, "etc", name)
    if os.path.islink(os.path.join(root, "etc")):
        return
    text = ""
    if os.path.isfile(path) and not os.path.islink(path):
        text = host_files.read(path, BYTES_AT_MOST).decode("utf-8", "replace")
    rows = [one for one in text.splitlines() if one.split(":")[0] != word and one.split(":")[2:3] != [str(number)]]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    host_files.write(path, "".join(f"{one}\n" for one in rows) + line, mode=0o644)


def adapted(config: Mapping[str, Any], uid: int, gid: int, mounts: Sequence[str]) -> dict[str, Any]:
    """The configuration of a runtime with the user as who they are, and without limits that Slurm has set already.

    One that was adapted before gets these mounts instead of those that it has.
    """
    process = {key: value for key, value in config["process"].items() if key not in ("capabilities", "rlimits")}
    process.update(terminal=False, user={"uid": uid, "gid": gid}, cwd="/")
    # What stands here goes before the environment of the job, and the image's user has another home.
    process["env"] = [one for one in process.get("env") or () if not one.startswith("HOME=")]
    linux = dict(config["linux"])
    linux["uidMappings"] = [{"containerID": uid, "hostID": uid, "size": 1}]
    linux["gidMappings"] = [{"containerID": gid, "hostID": gid, "size": 1}]
    own = [
        {"destination": path, "source": path, "type": "none", "options": OWN_OPTIONS}
        for path in dict.fromkeys([HOSTS, *mounts])
        if path == HOSTS or os.path.isdir(path)
    ]
    return {
        **config,
        "process": process,
        "linux": linux,
        "root": {**config["root"], "readonly": False},
        "mounts": [*(row for row in config["mounts"] if not _is_own(row)), *own],
    }


def _is_own(mount: Mapping[str, Any]) -> bool:
    return mount.get("options") == OWN_OPTIONS and mount.get("source") == mount["destination"]


def main(words: Sequence[str] | None = None, settings: str = SETTINGS) -> int:
    parser = argparse.ArgumentParser(prog=NAME, description="Images of a registry in jobs of Slurm.")
    orders = parser.add_subparsers(dest="order", required=True)
    order = orders.add_parser("run", help="run a program in an image; within a job")
    order.add_argument("image", metavar="IMAGE", help="HOST:PORT/NAME:TAG or HOST:PORT/NAME@DIGEST")
    order.add_argument("program", metavar="PROGRAM", nargs=argparse.REMAINDER, help="with its arguments")
    order = orders.add_parser("bundle", help="unpack an image, and say where; for srun --container")
    order.add_argument("image", metavar="IMAGE")
    order = orders.add_parser("save", help="push what was changed in an image on this node as another one")
    order.add_argument("image", metavar="IMAGE")
    order.add_argument("target", metavar="TARGET", help="HOST:PORT/USER/NAME:TAG")
    orders.add_parser("remove", help="remove all that was unpacked on this node")
    order = orders.add_parser("expire", help="remove what was not used for some time; as root, of all users")
    order.add_argument("place", metavar="DIRECTORY", nargs="?", default="")
    asked = parser.parse_args(words)
    # A job has that of the login, which its node and the container do not have: skopeo and others warn of it.
    if not os.path.isdir(os.environ.get("XDG_RUNTIME_DIR", "/")):
        del os.environ["XDG_RUNTIME_DIR"]
    try:
        known = bounded_json.parse_object(host_files.read(settings, BYTES_AT_MOST)) if os.path.exists(settings) else {}
        directory = str(known.get("directory", DIRECTORY))
        if asked.order == "expire" and not asked.place:
            return expire_all(directory, os.path.abspath(sys.argv[0]))
        if asked.order == "expire":
            for path in expire(asked.place, float(known.get("days", DAYS)), time.time()):
                print(f"removed {one_line(path, 300)}")
            return 0
        images = Images(directory, [str(path) for path in known.get("mounts", ())], say=_say)
        if asked.order == "bundle":
            print(images.bundle(asked.image))
        elif asked.order == "save":
            print(images.save(asked.image, asked.target))
        elif asked.order == "remove":
            print(f"removed {images.remove()}")
        else:
            return _run(images, asked.image, asked.program)
    except (Refused, OSError, *bounded_json.MISSHAPEN) as why:
        sys.stderr.write(f"{NAME}: {one_line(why, 2000)}\n")
        return 1
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"{NAME}: {text}\n")


def _run(images: Images, image: str, program: Sequence[str]) -> int:
    if "SLURM_JOB_ID" not in os.environ:
        raise Refused("this is not a job of Slurm", f"call `{NAME} run` in a job, such as by srun or sbatch")
    if not program:
        raise Refused("no program is named", f"call `{NAME} run IMAGE PROGRAM`")
    bundle = images.bundle(image)
    # The step has everything that the job has.
    options = ["--overlap", "--ntasks=1", "--mem=0", "--cpu-bind=none", f"--container={bundle}"]
    images.hold(bundle)
    os.environ.pop("XDG_RUNTIME_DIR", None)
    os.execvp("srun", ["srun", *options, *program])


if __name__ == "__main__":
    raise SystemExit(main())
