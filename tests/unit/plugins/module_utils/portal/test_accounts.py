# SPDX-License-Identifier: GPL-3.0-or-later
"""From a login to the Unix account."""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts

GROUPS = {1000: "alice", 2000: "lab", 3000: "students"}


def row(name: str = "alice", uid: int = 1000, home: str = "/home/alice", shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, 1000, "", home, shell))


def find(
    name: str = "alice", found: pwd.struct_passwd | None = None, allowed: tuple[str, ...] = ()
) -> accounts.Account:
    def look(asked: str) -> pwd.struct_passwd:
        if found is None:
            raise KeyError(asked)
        return found

    def group(gid: int) -> grp.struct_group:
        return grp.struct_group((GROUPS[gid], "x", gid, []))

    return accounts.find(name, allowed, look=look, groups_of=lambda _name, gid: [gid, 2000, 4444], group=group)


@pytest.mark.parametrize(
    ("login", "name"),
    [
        ("alice", "alice"),
        (" Alice ", "alice"),
        ("alice@example.org", "alice"),
        ("ALICE@EXAMPLE.ORG", "alice"),
        ("_svc-1.x", "_svc-1.x"),
    ],
)
def test_a_login_is_for_the_account_of_that_name(login: str, name: str) -> None:
    assert accounts.name_of(login, ["example.org"]) == name


@pytest.mark.parametrize(
    "login",
    [
        "",
        "@example.org",
        "alice@example.com",
        "alice@example.org@example.org",
        "alice@example.org.",
        "root;reboot",
        "../../root",
        "alice/../bob",
        "-rf",
        "al ice",
        "alice\n",
        "alice\n#SBATCH --uid=0",
        "alice\0",
        "älice",
        "alice\u202e",
        "\uff41lice",
        # The sign of kelvin, whose small letter is k.
        "\u212aevin",
        "\u212aevin@example.org",
        "\u2003alice",
        "1000",
        "<script>",
        "$(id)",
        "a" * 33,
        "a" * 100_000,
    ],
)
def test_odd_names_are_refused_by_what_is_wrong_with_them(login: str) -> None:
    if login == "alice\n":
        # White space around a name is a slip of the finger.
        assert accounts.name_of(login) == "alice"
        return
    with pytest.raises(Refused) as refused:
        accounts.name_of(login, ["example.org"])
    assert refused.value.problem.code == "no_account"
    assert len(str(refused.value)) < 300
    assert str(refused.value).isprintable()


def test_a_domain_needs_to_be_ours() -> None:
    with pytest.raises(Refused, match="another domain"):
        accounts.name_of("alice@example.org")


@pytest.mark.parametrize("login", ["bob", " bob ", "bob@", "bob@example.com"])
def test_a_name_that_others_give_needs_one_of_our_domains(login: str) -> None:
    with pytest.raises(Refused, match="domain"):
        accounts.name_of(login, ["example.org"], needs_domain=True)
    assert accounts.name_of("Bob@Example.org", ["example.org"], needs_domain=True) == "bob"


def test_an_account_has_its_groups_and_home() -> None:
    found = find(found=row())
    assert (found.name, found.uid, found.home, found.groups) == ("alice", 1000, "/home/alice", ("alice", "lab"))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "no such account"),
        (row(name="alice2"), "called alice2"),
        (row(uid=0), "of the system"),
        (row(uid=999), "of the system"),
        (row(uid=65534), "of the system"),
        (row(home=""), "no home"),
        (row(home="/"), "no home"),
        (row(shell="/usr/sbin/nologin"), "closed"),
        (row(shell="/bin/false"), "closed"),
    ],
)
def test_who_is_no_person_with_a_home_is_refused(found: pwd.struct_passwd | None, why: str) -> None:
    with pytest.raises(Refused, match=why):
        find(found=found)


def test_only_who_is_in_an_allowed_group_has_sessions() -> None:
    assert find(found=row(), allowed=("lab", "staff")).name == "alice"
    with pytest.raises(Refused, match="none of the groups staff, students"):
        find(found=row(), allowed=("students", "staff"))


def directory(*names: str, ignores_case: bool = False) -> Callable[[str], pwd.struct_passwd]:
    def look(asked: str) -> pwd.struct_passwd:
        for name in names:
            if asked == name or (ignores_case and asked.lower() == name.lower()):
                return row(name)
        raise KeyError(asked)

    return look


@pytest.mark.parametrize(
    ("login", "look"),
    [
        ("JDoe", directory("JDoe")),
        ("JDoe@example.org", directory("JDoe")),
        ("JDOE", directory("JDOE")),
        ("jdoe", directory("JDOE")),
        ("jdoe", directory("Jdoe")),
        ("jdoe", directory("JDoe", ignores_case=True)),
        ("JDOE", directory("JDoe", ignores_case=True)),
    ],
)
def test_an_account_in_capitals_is_told_so(login: str, look: Callable[[str], pwd.struct_passwd]) -> None:
    with pytest.raises(
        Refused, match=r"there is such an account, and its name has capital letters\. To do: ask"
    ) as told:
        accounts.find(accounts.name_of(login, ["example.org"], look), look=look)
    assert told.value.problem.code == "no_account"


def test_capitals_of_a_login_do_no_harm_where_the_account_has_none() -> None:
    for look in (directory("jdoe"), directory("jdoe", "JDoe"), directory("jdoe", ignores_case=True)):
        assert accounts.name_of("JDoe", (), look) == "jdoe"
