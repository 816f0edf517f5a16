# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""SSH into a session: how its job starts an sshd of the user, at which port, and what the user configures."""

from __future__ import annotations

import re
from typing import NamedTuple

# The account of the jump, under which nobody can do more than reach a session of their own.
ACCOUNT = "baremetal-gpu-portal-ssh"
PROGRAM = "/usr/libexec/baremetal-gpu/portal-jump"
STATE = "/var/lib/baremetal-gpu-portal-ssh"
JUMP_KEY = f"{STATE}/host_key"
# Below the home: the key by which a user's sessions are known, from the first one on.
HOST_KEY = "gpuops-jobs/portal-ssh/host_key"
AUTHORIZED_KEYS = ".ssh/authorized_keys"
# Those of the site's list of users (role users): a file for each user, which is root's.
SITE_KEYS = "/etc/ssh/authorized_keys.d"
# A key without options: one with options is for something else than all of a session.
KEY = re.compile(
    r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)"
    r"|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com) [A-Za-z0-9+/]{40,8000}={0,3}",
    re.ASCII,
)
# What an address of Slurm and the names of users and servers are made of is one word of the shell.
TARGET = re.compile(r"([a-z0-9_.-]{1,32})/([a-z0-9-]{0,30})/([A-Za-z0-9.:_-]{1,253})/([0-9]{1,5})", re.ASCII)

# Makes the key where it is not there, never in the place of another one, and prints what is public of it.
MAKE_KEY = """
mkdir -p -- "${key%/*}" || exit 1
if test -e "$key" && ! test -f "$key"; then echo "$key is not a file" >&2; exit 1; fi
if ! test -s "$key"; then
ssh-keygen -q -t ed25519 -N '' -C '' -f "$key.$$" </dev/null && mv -n -- "$key.$$" "$key"
rm -f -- "$key.$$" "$key.$$.pub"
fi
ssh-keygen -y -f "$key"
"""
# The job's own variables are those of its logins, too; what has another form than theirs stays out. All who come in
# come from one address, that of the jump, which must not be closed for one of them who has no right key.
SSHD = """(
key="$HOME/{key}"
({make}) >/dev/null || exit
set -- -f /dev/null -h "$key"
/usr/sbin/sshd -t "$@" -o PerSourcePenalties=no 2>/dev/null && set -- "$@" -o PerSourcePenalties=no
variables=$(env | LC_ALL=C grep -E '^(CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|SLURM_[A-Z0-9_]+|TMPDIR|LANG|PATH)=\
[][A-Za-z0-9_./:,@%+=()-]*$' | tr '\\n' ' ')
exec /usr/sbin/sshd -D -e "$@" -p "$(({first} + SLURM_JOB_ID % {count}))" -o "SetEnv=$variables" -o UsePAM=no \
-o PidFile=none -o AllowUsers="$(id -un)" -o AuthenticationMethods=publickey \
-o "AuthorizedKeysFile={authorized} {site}/%u" -o Subsystem='sftp internal-sftp' \
-o LoginGraceTime=30 -o ClientAliveInterval=60
) &"""


class Target(NamedTuple):
    """Where a session's sshd is. `server` is empty for the first session of a user."""

    user: str
    server: str
    address: str
    port: int

    def __str__(self) -> str:
        return f"{self.user}/{self.server}/{self.address}/{self.port}"


def target(text: str) -> Target:
    """Raises ValueError."""
    found = TARGET.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a target")
    return Target(found[1], found[2], found[3], int(found[4]))


def port(job: int, ports: tuple[int, int]) -> int:
    """Nobody has to keep it: the job, the jump and the page all know the number of the job."""
    first, last = ports
    return first + job % (last - first + 1)


def start(ports: tuple[int, int]) -> str:
    """The lines of a session's script that start its sshd. Without one the session goes on."""
    first, last = ports
    return SSHD.format(
        key=HOST_KEY, make=MAKE_KEY, first=first, count=last - first + 1, authorized=AUTHORIZED_KEYS, site=SITE_KEYS
    )


def keys(text: str) -> set[str]:
    """The keys of a file of authorized keys."""
    words = (line.split() for line in text.splitlines())
    found = (" ".join(pair[:2]) for pair in words)
    return {one for one in found if KEY.fullmatch(one)}


def authorized(key: str) -> str:
    """The line of authorized keys that lets a key reach the sessions of whoever has it, and nothing else.

    Which those are is asked anew, for the user whom the connection names: whoever else has the key is not asked about.
    """
    return f'restrict,command="{PROGRAM} connect {key}" {key}'


# --- what a user configures ------------------------------------------------------------------------------------------


def alias(user: str, host: str) -> str:
    """The name under which the key of a user's sessions is known."""
    return f"{user}.sessions.{host}"


def config(user: str, host: str, at: int) -> str:
    """For ~/.ssh/config. What is given to the jump is the user and the name that was typed."""
    return f"""Host portal-jump
    HostName {host}
    Port {at}
    User {ACCOUNT}
    StrictHostKeyChecking yes

Host portal *.portal
    User {user}
    HostKeyAlias {alias(user, host)}
    StrictHostKeyChecking yes
    ProxyCommand ssh portal-jump %r %n
"""


def known_hosts(user: str, host: str, at: int, jump_key: str, session_key: str) -> str:
    """For ~/.ssh/known_hosts."""
    return f"[{host}]:{at} {jump_key}\n{alias(user, host)} {session_key}\n"
