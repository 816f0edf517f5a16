# SPDX-License-Identifier: GPL-3.0-or-later
"""Homes of users whom only a directory knows: a real slapd on one machine, and sssd on all."""

from __future__ import annotations

import shlex

import pytest

from tests.roles.ceph_site import CLIENT, EVERYBODY, HOME, HOMES, Site, changed, within
from tests.site.plays import ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

SERVER = "st2"
GROUP, NUMBER = "researchers", 3000
PEOPLE = {"carol": 3001, "dave": 3002}
APT = "sudo env DEBIAN_FRONTEND=noninteractive apt-get -qq install"
ROOT_OF_TREE = (
    "ldapsearch -LLL -Q -Y EXTERNAL -H ldapi:/// -s base -b '' namingContexts | sed -n 's/^namingContexts: //p'"
)
# Debian lets root change slapd's configuration, and nothing in the tree.
ROOT_MAY_WRITE = """dn: olcDatabase={1}mdb,cn=config
changetype: modify
add: olcAccess
olcAccess: {0}to * by dn.exact=gidNumber=0+uidNumber=0,cn=peercred,cn=external,cn=auth manage by * break
"""


def entries(suffix: str) -> str:
    """People and their group as LDIF."""
    units = "".join(f"dn: ou={unit},{suffix}\nobjectClass: organizationalUnit\n\n" for unit in ("people", "groups"))
    people = "".join(
        f"dn: uid={name},ou=people,{suffix}\nobjectClass: inetOrgPerson\nobjectClass: posixAccount\n"
        f"cn: {name}\nsn: {name}\nuid: {name}\nuidNumber: {number}\ngidNumber: {NUMBER}\n"
        f"homeDirectory: {HOME}/{name}\nloginShell: /bin/sh\n\n"
        for name, number in PEOPLE.items()
    )
    members = "".join(f"memberUid: {name}\n" for name in PEOPLE)
    return f"{units}{people}dn: cn={GROUP},ou=groups,{suffix}\nobjectClass: posixGroup\ngidNumber: {NUMBER}\n{members}"


@pytest.fixture(scope="module")
def directory(site: Site) -> Site:
    """All machines know the people."""
    ssh(SERVER, f"{APT} slapd ldap-utils >/dev/null 2>&1")
    suffix = ssh(SERVER, f"sudo {ROOT_OF_TREE}").strip()
    # The statuses say that it is there already, on machines that are kept.
    for program, ldif, known in (("ldapmodify", ROOT_MAY_WRITE, 20), ("ldapadd -c", entries(suffix), 68)):
        load = f"printf %s {shlex.quote(ldif)} | sudo {program} -Q -Y EXTERNAL -H ldapi:/// >/dev/null"
        ssh(SERVER, f"{load} || test $? = {known}")
    address = ssh(SERVER, "hostname -I").split()[0]
    settings = "\n".join(
        (
            "[sssd]\nservices = nss\ndomains = lab\n[domain/lab]\nid_provider = ldap\nauth_provider = none",
            f"ldap_uri = ldap://{address}\nldap_search_base = {suffix}\nldap_id_use_start_tls = false\n",
        )
    )
    for name in EVERYBODY:
        ssh(name, f"{APT} sssd-ldap libnss-sss >/dev/null 2>&1")
        write = f"printf %s {shlex.quote(settings)} >/etc/sssd/sssd.conf && chmod 600 /etc/sssd/sssd.conf"
        ssh(name, f"sudo sh -c {shlex.quote(write)} && sudo systemctl restart sssd")
    for name in EVERYBODY:
        # getent ends with 2 until sssd has heard of the group.
        within(60, f"{name} knows no {GROUP}", lambda name=name: "carol" in ssh(name, f"getent group {GROUP} || true"))
    return site


def as_person(machine: str, user: str, command: str) -> str:
    """What a command of a user says, and its exit status behind it; by the name that the directory has."""
    return ssh(machine, f"sudo timeout -s KILL 120 runuser -u {user} -- sh -c {shlex.quote(command)} 2>&1; echo rc=$?")


def test_members_of_a_group_of_the_directory_get_homes_that_only_they_reach(directory: Site) -> None:
    asked = {**HOMES, "cephfs_homes_groups": [GROUP], "cephfs_homes_size": "30M"}
    play = directory.run(**asked)
    assert play.rc == 0, play.tail()
    for name, number in PEOPLE.items():
        for machine in EVERYBODY:
            assert ssh(machine, f"stat -c '%u %g %a' {HOME}/{name}") == f"{number} {NUMBER} 700\n"
    written = as_person(CLIENT, "carol", f"echo hers >{HOME}/carol/note && sync {HOME}/carol/note")
    assert written == "rc=0\n"
    assert as_person(SERVER, "carol", f"cat {HOME}/carol/note") == "hers\nrc=0\n"
    assert "Permission denied" in as_person(CLIENT, "dave", f"cat {HOME}/carol/note")
    assert "quota exceeded" in as_person(CLIENT, "dave", f"dd if=/dev/zero of={HOME}/dave/x bs=1M count=60 oflag=sync")
    assert as_person(CLIENT, "dave", f"rm {HOME}/dave/x") == "rc=0\n"
    assert changed(directory.run(**asked)) == {}


def test_a_directory_that_is_silent_changes_no_home(directory: Site) -> None:
    """sssd goes on by what it has heard, and a group of which it never has is refused by name."""
    ssh(SERVER, "sudo systemctl stop slapd")
    try:
        play = directory.run(cephfs_homes_groups=[GROUP, "strangers"], cephfs_homes_size="30M")
        assert as_person(CLIENT, "carol", f"cat {HOME}/carol/note") == "hers\nrc=0\n"
    finally:
        ssh(SERVER, "sudo systemctl start slapd")
    assert play.rc != 0
    assert changed(play) == {}
    for name in EVERYBODY:
        (said,) = play.failures[name]
        assert f"{name}: the host does not know strangers of cephfs_homes_groups" in said
