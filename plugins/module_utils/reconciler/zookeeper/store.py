# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler's nodes in ZooKeeper.

    PATH/hosts/HOST            {reader, moved}: made for the host, which may make nodes below it, and nobody else may
    PATH/hosts/HOST/verdict    ephemeral, by the GPU agent of the host: what it publishes
    PATH/verdicts/HOST         the same, by agents that have no login of their own yet
    PATH/orders/HOST           for that agent: {order, clear}
    PATH/journal/HOST          {memory, last}: what is known of the node, and its last entries
    PATH/fleet                 the breaker's memory
    PATH/requests/r-N          what operators ask of the reconciler
    PATH/election              who leads
    PATH/aside/…               what could not be used, as it was

What is written is written only if it is still what was read: a reconciler that lost its lead without noticing stops at
its next record, before it acts.

With a login, all of this is ours: whoever else may write to a node, or made it, is shut out before anything is read,
and what such a node holds is not gone on from.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import published as published_verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import Published, Unusable
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import rows as stored_rows
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import NotLeading, NotOurs, Plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.zookeeper.settings import Logins, Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import digest_id

try:
    from kazoo.client import KazooClient, KazooState
    from kazoo.exceptions import (
        BadVersionError,
        CancelledError,
        KazooException,
        LockTimeout,
        NoAuthError,
        NodeExistsError,
        NoNodeError,
        NotEmptyError,
    )
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.retry import KazooRetry
    from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions

    # What the client raises when it cannot tell whether something was done.
    UNREACHABLE: tuple[type[Exception], ...] = (KazooException, KazooTimeoutError)
    WHY_NOT = ""
except ImportError as missing:
    UNREACHABLE = ()
    WHY_NOT = f"the Python library kazoo is not here ({missing})"


# Its complaints about a lost connection come as states too.
logging.getLogger("kazoo").addHandler(logging.NullHandler())

PARENTS = ("aside", "election", "hosts", "journal", "orders", "requests", "verdicts")


class ZooKeeperStore:
    """See `Store`. `secrets` are those of settings.py."""

    UNREACHABLE = UNREACHABLE
    NAME = "ZooKeeper"

    def __init__(self, settings: Settings, secrets: Mapping[str, str], plan: Plan) -> None:
        if WHY_NOT:
            raise Wrong(WHY_NOT, "install the package python3-kazoo")
        self.path, self.plan = settings.path, plan
        logins = [
            (secrets[f"zookeeper_{who}user"], secrets[f"zookeeper_{who}password"])
            for who in ("", "former_")
            if secrets.get(f"zookeeper_{who}user") and secrets.get(f"zookeeper_{who}password")
        ]
        # Ours, and the one that we had before.
        self.owners = [digest_id(*login) for login in logins]
        self.acl: list[Any] = [_all(self.owners[0])] if logins else list(OPEN_ACL_UNSAFE)
        self.logins = Logins(settings.logins)
        if self.logins.rows and not self.owners:
            raise Wrong(f"{settings.logins} has the hosts' logins, and there is none of the reconciler", "give both")
        user, password = secrets.get("zookeeper_agents_user"), secrets.get("zookeeper_agents_password")
        self.shared = None if user is None or password is None else digest_id(user, password)
        # Hosts that have published with their own login: what is published with another one for them is not theirs.
        self.moved: set[str] = set()
        # Host -> why its nodes cannot be used.
        self.refused: dict[str, str] = {}
        # What was put right, for whoever tells it.
        self.repaired: list[str] = []
        self.client = KazooClient(
            settings.zookeeper,
            timeout=settings.session_s,
            auth_data=[("digest", ":".join(login)) for login in logins] or None,
            default_acl=self.acl,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=2.0),
            command_retry=KazooRetry(max_tries=3, delay=0.1, max_delay=1.0),
            randomize_hosts=True,
        )
        self._versions: dict[str, int] = {}
        self._news: Callable[[str | None], None] | None = None
        self._asked: Callable[[], None] | None = None
        # One for each host, so that the client has none of them twice.
        self._watchers: dict[str | None, Callable[[Any], None]] = {}

    def listen(self, changed: Callable[[bool, bool], None]) -> None:
        """Call it with whether there is a connection, and whether the session is over."""

        def listener(state: str) -> None:
            changed(state == KazooState.CONNECTED, state == KazooState.LOST)

        self.client.add_listener(listener)

    def place(self, name: str) -> Any:
        """A place in the queue of those who want to lead; see `take`."""
        return self.client.Lock(f"{self.path}/election", name)

    @staticmethod
    def take(place: Any, timeout_s: float | None = None) -> bool:
        """Whether the lead is ours within this time; not if the place is given up with `cancel` meanwhile."""
        try:
            return bool(place.acquire(timeout=timeout_s))
        except (LockTimeout, CancelledError):
            return False

    def open(self, timeout_s: float = 15.0) -> None:
        """Raises Wrong where no server gives a session."""
        try:
            self.client.start(timeout_s)
        except KazooTimeoutError as why:
            servers = ",".join(f"{host}:{port}" for host, port in self.client.hosts)
            raise Wrong(f"no ZooKeeper server of {servers} gives a session", "check them with the word srvr") from why

    def serve(self) -> None:
        """The hosts come by themselves."""

    def refresh(self) -> bool:
        """Whether hosts have come, or have other logins. Raises Wrong."""
        return self.logins.refresh()

    def renew(self) -> None:
        """End the session and everything that hangs on it, and begin another one if a server gives it."""
        self.client.stop()
        with contextlib.suppress(KazooTimeoutError):
            self.client.start(2.0)

    def close(self) -> None:
        self.client.stop()
        self.client.close()

    # Whose nodes they are.

    def prepare(self) -> None:
        """Make the nodes that there have to be, and take back those that are not ours alone. Raises NotOurs."""
        doubted = self._take_back(self.path, self.acl)
        for name in PARENTS:
            path = f"{self.path}/{name}"
            acl = [*self.acl, *([_may(self.shared, FOR_HOST)] if name == "verdicts" and self.shared else ())]
            if self._take_back(path, acl, doubted):
                getattr(self, f"_vet_{name}")(path)
                self._settle_doubt(path)
        if doubted:
            self._settle_doubt(self.path)

    def prepare_hosts(self) -> None:
        """For whoever leads: a node for each host that has a login, and none that only a former host could write."""
        if not self.owners:
            return
        self.refused = {}
        logins = self.logins.rows
        there, with_orders = set(self._children("hosts")), set(self._children("orders"))
        for host in sorted({*logins, *there, *with_orders}):
            why = self._prepare_one(host, logins.get(host), host in there, host in with_orders)
            if why:
                self.refused[host] = why

    def _prepare_one(self, host: str, login: str | None, there: bool, with_orders: bool) -> str:
        """Why the nodes of a host cannot be used; empty if they can."""
        path, orders = f"{self.path}/hosts/{host}", f"{self.path}/orders/{host}"
        try:
            if login is not None:
                self._prepare_host(host, login)
            elif there:
                self._take_back(path, self.acl)
                self._delete(f"{path}/verdict")
                self._settle_doubt(path)
            if with_orders and self._take_back(orders, self._for_orders(host)):
                # The driver sends again what is not there.
                self._delete(orders)
                self._settle_doubt(orders)
        except (NotOurs, NoAuthError) as why:
            return one_line(why)
        return ""

    def _prepare_host(self, host: str, login: str) -> None:
        path = f"{self.path}/hosts/{host}"
        # The login that the host had before could do no more than the one that it has.
        doubted = self._take_back(path, [*self.acl, _may(login, FOR_HOST)], meant=FOR_HOST)
        if doubted:
            self._empty(path)
        data, _stat = self.client.get(path)
        told = {} if doubted else _told(data)
        wanted = {"schema": 1, "reader": self.owners[0], "moved": told.get("moved") is True}
        if told != wanted:
            self.client.set(path, _data(wanted))
        if wanted["moved"]:
            self.moved.add(host)
        else:
            self.moved.discard(host)
        if doubted:
            self._settle_doubt(path)

    def _take_back(self, path: str, acl: list[Any], doubted: bool = False, meant: int = 0) -> bool:
        """Make the node, or give it the ACL that it is to have. Whether somebody else could do more than `meant`, so
        that what is there is not gone on from; that stays known until `_settle_doubt`. Raises NotOurs."""
        try:
            found = self._acls(path)
        except NoNodeError:
            with contextlib.suppress(NodeExistsError):
                self.client.create(path, acl=acl, makepath=True)
                return False
            found = self._acls(path)
        if not self.owners:
            # Without a login nothing can be kept from anybody; see the settings for what is refused then.
            if found is not None and not any(row.id.scheme == "world" and row.perms == ALL for row in found):
                raise NotOurs(f"{path} belongs to {_names(found)}, and there is no login. {self._to_do('this node')}")
            return False
        doubted = doubted or self.client.exists(self._mark(path)) is not None
        doubted = doubted or found is None or bool(self._strangers(found, acl, meant))
        differs = found is None or set(found) != set(acl)
        try:
            if doubted:
                self._doubt(path)
            if differs:
                self.client.set_acls(path, acl)
            if doubted:
                # Our own node was open to the stranger as well.
                self._doubt(path)
        except NoAuthError as why:
            whose = "another client" if found is None else _names(found)
            raise NotOurs(f"{path} belongs to {whose}, so nothing of it is read. {self._to_do('it')}") from why
        if doubted and differs:
            told = "clients that are not known" if found is None else _names(self._strangers(found, acl, meant)) or "us"
            self.repaired.append(f"{path} was open to {told}, and belongs to the reconciler again")
        return doubted

    def _to_do(self, what: str) -> str:
        user = self.owners[0].partition(":")[0] if self.owners else "the reconciler"
        return f"To do: delete {what} as its owner or as ZooKeeper's superuser, or give it to digest:{user}"

    def _mark(self, path: str) -> str:
        """Beside the nodes of the reconciler, so that a stranger who can write below `path` cannot take it away."""
        name = path[len(self.path) :].replace("/", "-") or "-root"
        return f"{self.path}/doubt{name}"

    def _doubt(self, path: str) -> None:
        with contextlib.suppress(NodeExistsError):
            self.client.create(self._mark(path), acl=self.acl)

    def _settle_doubt(self, path: str) -> None:
        self._delete(self._mark(path))

    def _acls(self, path: str) -> list[Any] | None:
        """The ACL; None where it may not be seen."""
        try:
            found: list[Any] = self.client.get_acls(path)[0]
        except NoAuthError:
            return None
        return found

    def _strangers(self, found: Iterable[Any], wanted: Iterable[Any] = (), meant: int = 0) -> list[Any]:
        """Who may change something, and is neither us nor meant to."""
        known = {("digest", owner) for owner in self.owners}
        meant_for = {(row.id.scheme, row.id.id): row.perms for row in wanted}
        return [
            row
            for row in found
            if (row.id.scheme, row.id.id) not in known
            and row.perms & ~READ & ~meant & ~meant_for.get((row.id.scheme, row.id.id), 0)
        ]

    def _vet_aside(self, path: str) -> None:
        """Nothing is read from there."""

    def _vet_election(self, path: str) -> None:
        """A place in the queue of somebody else would be waited for without an end."""
        for name in self._children("election"):
            with contextlib.suppress(NoNodeError):
                found = self._acls(f"{path}/{name}")
                if found is None or self._strangers(found):
                    self._delete(f"{path}/{name}")

    def _vet_hosts(self, path: str) -> None:
        for name in self._children("hosts"):
            # Its children go when its turn comes.
            self._doubt(f"{path}/{name}")

    def _vet_verdicts(self, path: str) -> None:
        self._empty(path)

    def _vet_orders(self, path: str) -> None:
        """The driver sends again what is not there."""
        self._empty(path)

    def _vet_requests(self, path: str) -> None:
        self._empty(path)

    def _vet_journal(self, path: str) -> None:
        for name in self._children("journal"):
            with contextlib.suppress(NoNodeError, NoAuthError):
                data, _stat = self.client.get(f"{path}/{name}")
                self._put_aside(f"{path}/{name}", "another client could write it", not _is_idle(self.plan, name, data))
                continue
            self._put_aside(f"{path}/{name}", "a node of another client")

    def _empty(self, path: str) -> None:
        names = self.client.get_children(path)
        try:
            for name in names:
                with contextlib.suppress(NoNodeError):
                    self.client.delete(f"{path}/{name}", recursive=True)
        except NoAuthError as why:
            raise NotOurs(f"{path} has nodes of another client. {self._to_do('them')}") from why
        if names:
            self.repaired.append(f"{path}: {len(names)} nodes that another client could have created were deleted")

    def _delete(self, path: str) -> None:
        with contextlib.suppress(NoNodeError, NotEmptyError):
            self.client.delete(path)

    def _put_aside(self, path: str, why: str, leave: bool = True) -> str:
        """Keep what a node holds below PATH/aside; with `leave` the reason takes its place. Gives the reason."""
        try:
            data, stat = self.client.get(path)
        except NoAuthError:
            data, stat = b"", None
        name = path[len(self.path) + 1 :].replace("/", "-")
        kept = f"{self.path}/aside/{name}-{stat.mzxid if stat else 0}"
        with contextlib.suppress(NodeExistsError):
            self.client.create(kept, data, acl=self.acl)
        why = f"{path} cannot be used: {why}. It is kept as {kept}"
        self._empty(path)
        both = self.client.transaction()
        both.delete(path)
        if leave:
            both.create(path, _data({"apart": why}), acl=self.acl)
        failed = [row for row in both.commit() if isinstance(row, Exception)]
        if failed:
            raise NotOurs(f"{why}, and cannot be removed. {self._to_do('it')}")
        self._versions.pop(path, None)
        if leave:
            self._versions[path] = 0
        self.repaired.append(why)
        return why

    # What only the leader reads and writes.

    def load(self, keep: bool = False) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]], dict[str, str]]:
        """(the fleet's memory, None if it is lost; host -> {memory, last}; host -> why what was known cannot be used).

        With `keep`, for who leads, what cannot be used is put aside.
        """
        self._versions = {}
        rows: dict[str, dict[str, Any]] = {}
        apart: dict[str, str] = {}
        for host in self._children("journal"):
            if not re.fullmatch(published_verdict.HOST, host):
                continue
            path = f"{self.path}/journal/{host}"
            try:
                row = self._read(path, functools.partial(stored_rows.node, self.plan, host))
            except stored_rows.OtherVersion as why:
                apart[host] = f"{path} cannot be used: {why}"
            except Malformed as why:
                apart[host] = self._put_aside(path, str(why)) if keep else f"{path} cannot be used: {why}"
            else:
                if row and "apart" in row:
                    apart[host] = row["apart"]
                elif row:
                    rows[host] = row
        for name in self._children("aside") if len(self.owners) > 1 else ():
            self._take_over(f"{self.path}/aside/{name}", self._acls(f"{self.path}/aside/{name}") or self.acl)
        fleet: dict[str, Any] | None
        try:
            fleet = self._read(f"{self.path}/fleet", stored_rows.fleet) or {}
        except Malformed as why:
            fleet = None
            if keep:
                self._put_aside(f"{self.path}/fleet", str(why), leave=False)
        return fleet, rows, apart

    def save_node(self, host: str, row: dict[str, Any]) -> None:
        self._write(f"{self.path}/journal/{host}", row)

    def save_fleet(self, row: dict[str, Any]) -> None:
        self._write(f"{self.path}/fleet", row)

    def send(self, host: str, document: dict[str, Any]) -> None:
        """Put an order to a node, readable for its agent."""
        path, data = f"{self.path}/orders/{host}", _data(document)
        try:
            self.client.set(path, data)
        except NoNodeError:
            self.client.create(path, data, acl=self._for_orders(host))

    def _for_orders(self, host: str) -> list[Any]:
        """All for us, and reading for the host. Until it has a login of its own, for the one that it shares."""
        readers = [self.logins.rows.get(host), None if host in self.moved else self.shared]
        return [*self.acl, *(_may(login, READ) for login in readers if login and self.owners)]

    def sent(self, host: str) -> dict[str, Any]:
        try:
            data, _stat = self.client.get(f"{self.path}/orders/{host}")
        except (NoNodeError, NoAuthError):
            return {}
        return _told(data)

    def _children(self, name: str, watch: Callable[[Any], None] | None = None) -> list[str]:
        try:
            return list(self.client.get_children(f"{self.path}/{name}", watch=watch))
        except NoNodeError:
            return []

    def _read(self, path: str, check: Callable[[bytes], dict[str, Any]]) -> dict[str, Any] | None:
        """Raises Malformed for what is not as `check` wants it, or was written by somebody else."""
        try:
            found = self._acls(path) if self.owners else []
            data, stat = self.client.get(path)
        except NoNodeError:
            return None
        except NoAuthError as why:
            raise Malformed("it belongs to another client") from why
        self._versions[path] = stat.version
        if found is None or self._strangers(found):
            raise Malformed("another client could write it")
        self._take_over(path, found)
        return check(data)

    def _take_over(self, path: str, found: Iterable[Any]) -> None:
        """What we have made with the login that we had before is for the one that we have."""
        if len(self.owners) > 1 and set(found) != set(self.acl):
            self.client.set_acls(path, self.acl)

    def _write(self, path: str, row: dict[str, Any]) -> None:
        try:
            if path in self._versions:
                self._versions[path] = self.client.set(path, _data(row), version=self._versions[path]).version
            else:
                self.client.create(path, _data(row))
                self._versions[path] = 0
        except (BadVersionError, NodeExistsError, NoNodeError) as why:
            raise NotLeading(f"{path} was written by another reconciler") from why

    # What nodes publish and operators ask.

    def verdicts(self) -> dict[str, Published]:
        """Host -> what it publishes now. What follows is told to `watch`."""
        found = {host: self.verdict(host) for host in sorted({*self.logins.rows, *self._of_others()})}
        return {host: told for host, told in found.items() if told is not None}

    def _of_others(self) -> set[str]:
        """Hosts that publish without a login of their own, as far as that counts."""
        if self.logins.rows and not self.shared:
            return set()
        watch = self._watcher(None) if self._news else None
        names = {host for host in self._children("verdicts", watch) if re.fullmatch(published_verdict.HOST, host)}
        logins = self.logins.rows
        return names & set(logins) if logins else names

    def verdict(self, host: str) -> Published | None:
        """What a host publishes now; None for nothing."""
        if host in self.refused:
            return Unusable(self.refused[host])
        logins = self.logins.rows
        if host in logins:
            found = self._look(host, f"{self.path}/hosts/{host}/verdict")
            if found is not None:
                self._has_moved(host)
                return found
            if not self.shared or self._moved(host):
                return None
        return self._look(host, f"{self.path}/verdicts/{host}")

    def _look(self, host: str, path: str) -> Published | None:
        watch = self._watcher(host) if self._news else None
        while True:
            try:
                data, stat = self.client.get(path, watch=watch)
            except NoNodeError:
                if self.client.exists(path, watch=watch) is None:
                    return None
                # It came into being between the two.
                continue
            except NoAuthError:
                self.client.exists(path, watch=watch)
                return Unusable(f"{path} may not be read by the reconciler")
            if self.owners and not stat.ephemeralOwner:
                return Unusable(f"{path} is not ephemeral, so it would outlast its agent")
            return published_verdict.read(host, data)

    def _moved(self, host: str) -> bool:
        if host not in self.moved:
            with contextlib.suppress(NoNodeError, NoAuthError):
                if _told(self.client.get(f"{self.path}/hosts/{host}")[0]).get("moved") is True:
                    self.moved.add(host)
        return host in self.moved

    def _has_moved(self, host: str) -> None:
        """From now on only what it publishes with its own login counts."""
        if host in self.moved:
            return
        self.moved.add(host)
        if self._news:
            path = f"{self.path}/hosts/{host}"
            self.client.set(path, _data({"schema": 1, "reader": self.owners[0], "moved": True}))
            if self.client.exists(f"{self.path}/orders/{host}"):
                self.client.set_acls(f"{self.path}/orders/{host}", self._for_orders(host))

    def _watcher(self, host: str | None) -> Callable[[Any], None]:
        if host not in self._watchers:

            def fired(_event: Any) -> None:
                if self._news:
                    self._news(host)

            self._watchers[host] = fired
        return self._watchers[host]

    def watch(self, news: Callable[[str | None], None], asked: Callable[[], None]) -> Callable[[], None]:
        """Call `news` with a host of which `verdict` may be another than it was, None for any that are new, and `asked`
        when `requests` may have more; each once for each time that these were read. Gives what ends it. The calls come
        from a thread of the client's."""
        self._news, self._asked = news, asked

        def end() -> None:
            self._news = self._asked = None

        return end

    def hosts(self) -> set[str]:
        """The nodes that publish or may publish, or that something is known of."""
        return {*self._of_others(), *self.logins.rows, *self._children("journal")}

    def without_own_login(self) -> list[str]:
        """Hosts that publish with a login that is not theirs alone."""
        if not self.owners:
            return sorted(self._of_others())
        return sorted(host for host in self._of_others() if not self._moved(host))

    def ask(self, request: dict[str, Any]) -> str:
        """Ask something of whoever leads; gives the name of the request, which is gone once it is done."""
        path = self.client.create(f"{self.path}/requests/r-", _data(request), sequence=True)
        return str(path).rpartition("/")[2]

    def requests(self) -> list[tuple[str, dict[str, Any] | Unusable]]:
        found: list[tuple[str, dict[str, Any] | Unusable]] = []

        def fired(_event: Any) -> None:
            if self._asked:
                self._asked()

        for name in sorted(self._children("requests", fired if self._asked else None)):
            request = self._request(name)
            if request is not None:
                found.append((name, request))
        return found

    def _request(self, name: str) -> dict[str, Any] | Unusable | None:
        try:
            return self._read(f"{self.path}/requests/{name}", stored_rows.request)
        except Malformed as why:
            return Unusable(str(why))

    def done(self, name: str) -> None:
        self._delete(f"{self.path}/requests/{name}")

    def leader(self) -> str | None:
        """Who leads; None for nobody."""
        try:
            contenders = self.client.Lock(f"{self.path}/election").contenders()
        except NoNodeError:
            return None
        return one_line(contenders[0]) if contenders else None


if not WHY_NOT:
    READ, ALL = Permissions.READ, Permissions.ALL
    # What a host may do with its node, and whoever shares a login with the others' place.
    FOR_HOST = READ | Permissions.CREATE | Permissions.DELETE


def _all(login: str) -> Any:
    return _may(login, ALL)


def _may(login: str, permissions: int) -> Any:
    return ACL(permissions, Id("digest", login))


def _names(acls: Iterable[Any]) -> str:
    """Whose entries they are, without the checksums of passwords."""
    return one_line(", ".join(sorted({f"{row.id.scheme}:{row.id.id.partition(':')[0]}" for row in acls})))


def _is_idle(plan: Plan, host: str, data: bytes) -> bool:
    """Whether nothing is lost with this row: nothing was done to the host, and nothing is going on."""
    try:
        row = stored_rows.node(plan, host, data)
    except Malformed:
        return False
    memory = row.get("memory") or {"number": 1}
    return not memory["number"] and not memory.get("gpus") and not row.get("clear")


def _data(row: dict[str, Any]) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def _told(data: bytes) -> dict[str, Any]:
    """A JSON object; empty for anything else."""
    try:
        return json_object(data)
    except Malformed:
        return {}
