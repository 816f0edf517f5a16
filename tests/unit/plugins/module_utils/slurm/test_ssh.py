# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of PAM that let users in only where they have a job, asked of the PAM of this machine."""

from __future__ import annotations

import ctypes.util
import dataclasses
import grp
import json
import pwd
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import ssh
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.ssh import Administrators, Host, Rules

# The parts of Debian's file that matter, in its order and with lines of an administrator.
SSHD = """\
# PAM configuration for the Secure Shell service
@include common-auth
account    required     pam_nologin.so
# account  required     pam_access.so
@include common-account
session    required     pam_loginuid.so
session    optional     pam_keyinit.so force revoke
@include common-session
session    required     pam_limits.so
@include common-password
"""
NOBODY = pwd.getpwnam("nobody")
NOGROUP = grp.getgrgid(NOBODY.pw_gid).gr_name
with_pam = pytest.mark.skipif(not ctypes.util.find_library("pam"), reason="this machine has no libpam")


@pytest.fixture
def pam(tmp_path: Path) -> Path:
    """A directory of PAM in which everybody comes in."""
    (tmp_path / "common-account").write_text("")
    (tmp_path / "common-session-noninteractive").write_text("")
    (tmp_path / "sshd").write_text("account required pam_permit.so\n")
    return tmp_path


def changed(text: str, rules: Rules) -> str:
    found = ssh.add(text, rules)
    assert found is not None
    return found


def lines_for(pam: Path, rules: Rules) -> str:
    """sshd's file with the lines. PAM looks for the files that it names beside it, and not in those of this machine."""
    text = changed((pam / "sshd").read_text() + "@include common-session\n", rules)
    return text.replace("substack ", f"substack {pam}/")


def names_kept_out(pam: Path, rules: Rules, *names: str) -> list[str]:
    """Whom PAM refuses with the lines, where pam_slurm_adopt is not installed: whoever gets to it is refused."""
    for name in ("common-session", "common-session-noninteractive"):
        (pam / name).write_text("session required pam_permit.so\n")
    return [problem.subject for problem in ssh.kept_out(lines_for(pam, rules), names, str(pam), run)]


@with_pam
def test_pam_lets_root_in_and_refuses_others_without_asking_slurm(pam: Path) -> None:
    assert names_kept_out(pam, Rules("gpu1"), "root", "nobody") == ["nobody"]


@with_pam
@pytest.mark.parametrize(
    "rules",
    [
        Rules("gpu1", users=("nobody",)),
        Rules("gpu1", groups=(NOGROUP,)),
        Rules("gpu1", groups=("no-such-group", NOGROUP), users=("somebody",)),
        Rules("gpu1", logins=("nobody",), users=("somebody",), groups=("no-such-group",)),
        Rules("gpu1", groups=("domain admins", NOGROUP, "\u00e9quipe gpu")),
        Rules("gpu1", users=("CORP\\jane", "john doe", "nobody")),
        Rules("gpu1", conditions=(f"uid eq {NOBODY.pw_uid}",)),
        Rules("gpu1", conditions=("user innetgr no-such-netgroup", f"gid eq {NOBODY.pw_gid}")),
        # More than fit into a line of PAM.
        Rules("gpu1", users=(*(f"administrator-with-a-long-name-{number:03}" for number in range(90)), "nobody")),
    ],
)
def test_pam_lets_administrators_in_by_whatever_names_them(pam: Path, rules: Rules) -> None:
    assert names_kept_out(pam, rules, "root", "nobody", "daemon") == ["daemon"]


@with_pam
def test_whom_pam_refuses_already_is_no_reason_to_leave_the_file(pam: Path) -> None:
    (pam / "sshd").write_text("account required pam_deny.so\n")
    assert names_kept_out(pam, Rules("gpu1"), "nobody") == []


@with_pam
def test_an_administrator_who_would_be_locked_out_by_another_file_is_told(pam: Path) -> None:
    text = "account required pam_deny.so\n"
    (problem,) = ssh.kept_out(text, ["root"], str(pam), run)
    assert (problem.code, problem.subject) == ("locked_out", "root")


def session_of(pam: Path, user: str, rules: Rules, text: str = "/job_") -> tuple[int, list[str]]:
    """PAM's answer to a login's session, and which of Debian's files it went through; `text` stands for a job."""
    for name in ("common-session", "common-session-noninteractive"):
        mark = f"session optional pam_exec.so quiet type=open_session /usr/bin/touch {pam}/{name}.seen\n"
        (pam / name).write_text(f"{mark}session required pam_permit.so\n")
    (pam / "sshd").write_text(lines_for(pam, rules).replace("/job_", text))
    ask = ssh.ASK_PAM.replace("pam_acct_mgmt", "pam_open_session")
    status, _out, _error = run([sys.executable, "-c", ask, user, str(pam)], None, 20)
    return status, sorted(path.stem for path in pam.glob("*.seen"))


@with_pam
def test_a_login_in_a_job_gets_no_session_of_systemd(pam: Path) -> None:
    assert session_of(pam, "nobody", Rules("gpu1"), text=":") == (0, ["common-session-noninteractive"])


@with_pam
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_administrators_get_the_session_that_they_had(pam: Path, user: str) -> None:
    assert session_of(pam, user, Rules("gpu1", groups=(NOGROUP,))) == (0, ["common-session"])


@with_pam
def test_a_login_that_is_in_no_job_after_all_is_refused(pam: Path) -> None:
    status, seen = session_of(pam, "nobody", Rules("gpu1"))
    assert status != 0
    assert seen == []


def test_pam_that_cannot_be_asked_is_a_problem(pam: Path) -> None:
    (problem,) = ssh.kept_out("", ["root"], str(pam), lambda *_: (124, "", ""))
    assert problem.code == "pam_not_asked"


def test_the_lines_go_and_leave_the_file_to_the_byte() -> None:
    text = SSHD.replace("@include common-session\n", "@include\tcommon-session  \n")
    assert changed(text, Rules("gpu1")) != text
    assert ssh.without(changed(text, Rules("gpu1", ("alice",), ("sudo",), ("admin",)))) == text


def test_accounts_are_judged_by_the_lines_of_others_first() -> None:
    lines = changed(SSHD + "account required pam_access.so \\\n  nodefgroup\n", Rules("gpu1")).splitlines()
    assert lines.index("  nodefgroup") < next(i for i, line in enumerate(lines) if ssh.MODULE in line)


@pytest.mark.parametrize("text", ["", "@include common-session\n", SSHD + "@include common-session\n"])
def test_a_file_of_another_form_is_not_touched(text: str) -> None:
    assert ssh.add(text, Rules("gpu1")) is None


@pytest.mark.parametrize("mark", [ssh.BEGIN, ssh.END])
def test_half_of_the_lines_is_not_taken_for_all(mark: str) -> None:
    text = changed(SSHD, Rules("gpu1")).replace(mark + "\n", "", 1)
    with pytest.raises(ssh.Damaged):
        ssh.without(text)


def test_lines_of_others_about_slurm_are_found(pam: Path) -> None:
    (pam / "common-account").write_text("account required pam_permit.so\naccount required pam_slurm_adopt.so\n")
    codes = [problem.code for problem in ssh.problems(SSHD, str(pam), lambda *_: (127, "", ""))]
    assert codes == ["adopted_elsewhere"]


def test_sshd_that_does_not_ask_pam_is_found(pam: Path) -> None:
    codes = [problem.code for problem in ssh.problems(SSHD, str(pam), lambda *_: (0, "port 22\nusepam no\n", ""))]
    assert codes == ["sshd_without_pam"]


# --- administrators

# The file, and what cvtsudoers 1.9.13 of Debian 12 made of it (-e -f json); without the options, which nobody reads.
#
#   User_Alias OPS = carol, %ops
#   root, !bob ALL=(ALL:ALL) ALL
#   %sudo ALL=(ALL:ALL) ALL
#   OPS ALL=(root) NOPASSWD: ALL
#   backup ALL=(www-data) ALL
#   %users ALL=(ALL) NOPASSWD: /usr/bin/nvidia-smi
#   dave node7=(ALL) ALL
#   ALL ALL=(ALL) ALL
CVTSUDOERS = (Path(__file__).parent / "cvtsudoers.json").read_text()


HOST = Host("gpu1.example.org", frozenset({"10.0.3.7"}))


def rule(who: dict[str, Any], **changes: Any) -> str:
    """A rule that lets somebody run everything everywhere, as cvtsudoers prints it."""
    commands = [{"runasusers": [{"username": "ALL"}], "Commands": [{"command": "ALL"}]}]
    row = {"User_List": [who], "Host_List": [{"hostname": "ALL"}], "Cmnd_Specs": commands, **changes}
    return json.dumps({"User_Specs": [row]})


def test_administrators_are_whom_sudo_lets_run_everything_as_root() -> None:
    assert ssh.sudoers(CVTSUDOERS, Host("gpu1")) == Administrators(("carol",), ("sudo", "ops"))


@pytest.mark.parametrize("hostname", ["node7", "node7.example.org"])
def test_administrators_of_one_host_are_those_of_that_host(hostname: str) -> None:
    assert ssh.sudoers(CVTSUDOERS, Host(hostname)) == Administrators(("carol", "dave"), ("sudo", "ops"))


@pytest.mark.parametrize(
    ("hosts", "here"),
    [
        ([{"hostname": "gpu*"}], True),
        ([{"hostname": "GPU1"}], True),
        ([{"hostname": "cpu*"}], False),
        ([{"networkaddr": "10.0.0.0/16"}], True),
        ([{"networkaddr": "10.0.3.7"}], True),
        ([{"networkaddr": "10.0.3.0/255.255.255.0"}], True),
        ([{"networkaddr": "10.1.0.0/16"}], False),
        ([{"netgroup": "gpus"}], True),
        ([{"netgroup": "others"}], False),
        ([{"hostname": "ALL"}, {"hostname": "gpu1", "negated": True}], False),
        ([{"hostname": "gpu1", "negated": True}, {"hostname": "ALL"}], True),
    ],
)
def test_a_rule_names_a_host_in_any_way_that_sudo_knows(hosts: list[dict[str, Any]], here: bool) -> None:
    netgroups = {"gpus": [("gpu0", "", ""), ("gpu1", "", "")]}
    host = dataclasses.replace(HOST, netgroup=lambda name: netgroups.get(name, []))
    found = ssh.sudoers(rule({"username": "alice"}, Host_List=hosts), host)
    assert found.users == (("alice",) if here else ())


@pytest.mark.parametrize("as_whom", [{"userid": 0}, {"usergroup": "root"}, {"username": "root"}])
def test_root_is_root_by_every_name(as_whom: dict[str, Any]) -> None:
    commands = [{"runasusers": [as_whom], "Commands": [{"command": "ALL"}]}]
    assert ssh.sudoers(rule({"username": "alice"}, Cmnd_Specs=commands), HOST).users == ("alice",)


@pytest.mark.parametrize(
    ("who", "found"),
    [
        ({"usergroup": "domain admins@corp.example"}, Administrators(groups=("domain admins@corp.example",))),
        ({"usergroup": "\u00e9quipe gpu"}, Administrators(groups=("\u00e9quipe gpu",))),
        ({"username": "CORP\\jane"}, Administrators(("CORP\\jane",))),
        ({"usergid": NOBODY.pw_gid}, Administrators(groups=(NOGROUP,))),
        ({"usergid": 54321}, Administrators(conditions=("gid eq 54321",))),
        ({"userid": 1005}, Administrators(conditions=("uid eq 1005",))),
        ({"userid": 0}, Administrators()),
        ({"netgroup": "ops"}, Administrators(conditions=("user innetgr ops",))),
    ],
)
def test_administrators_are_found_whatever_sudo_calls_them(who: dict[str, Any], found: Administrators) -> None:
    assert ssh.sudoers(rule(who), HOST) == found


def test_a_member_of_a_netgroup_comes_in_from_every_host() -> None:
    members = [("-", "alice", ""), ("", "bob", ""), ("desk7", "carol", ""), ("desk7", "-r f:x", "")]
    host = dataclasses.replace(HOST, netgroup=lambda _name: members)
    assert ssh.sudoers(rule({"netgroup": "ops"}), host).users == ("alice", "carol")


def test_the_members_of_a_netgroup_are_those_that_getent_prints() -> None:
    line = "ops                   (-,alice,-) ( ,bob,) (h1,carl,example.org)\n"
    assert ssh.netgroup("ops", lambda *_: (0, line, "")) == [
        ("-", "alice", "-"),
        ("", "bob", ""),
        ("h1", "carl", "example.org"),
    ]


@pytest.mark.parametrize(
    ("who", "evidence"),
    [({"nonunixgroup": "Domain Admins"}, "%:Domain Admins"), ({"usergroup": "a:b"}, "%a:b"), ({"new": "x"}, "%:x")],
)
def test_administrators_whom_pam_cannot_tell_are_never_dropped_in_silence(who: dict[str, Any], evidence: str) -> None:
    (problem,) = ssh.sudoers(rule(who), HOST).unclear
    assert (problem.code, problem.evidence) == ("unclear_administrators", evidence)
    assert "slurm_node_adopt" in problem.remedy


def test_administrators_whom_the_operator_names_as_well_are_clear() -> None:
    assert ssh.sudoers(rule({"nonunixgroup": "Domain Admins"}), HOST, ["domain admins"]).unclear == ()


@pytest.mark.parametrize("text", ["", "[]", '{"User_Specs": [{}]}', '{"User_Specs": 3}', "null"])
def test_what_is_no_list_of_sudo_is_a_problem(text: str) -> None:
    found = ssh.sudoers(text, HOST)
    assert [problem.code for problem in found.unclear] == ["sudoers_not_read"]


def test_rules_that_sudo_takes_and_cvtsudoers_does_not_are_a_problem() -> None:
    error = "/etc/sudoers.d/ops:3:1: empty group\n"
    (problem,) = ssh.administrators(lambda *_: (1, "", error)).unclear
    assert (problem.code, problem.evidence) == ("sudoers_not_read", error.strip())


@pytest.mark.parametrize("has_sudo", [True, False])
def test_without_cvtsudoers_a_host_with_sudo_is_a_problem(
    has_sudo: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "SUDO", str(tmp_path / "sudo"))
    if has_sudo:
        (tmp_path / "sudo").touch()
    found = ssh.administrators(lambda *_: (127, "", "no such file")).unclear
    assert [problem.code for problem in found] == (["sudoers_not_read"] if has_sudo else [])


def test_sources_of_sudo_that_are_not_read_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "NSSWITCH", str(tmp_path / "nsswitch.conf"))
    assert ssh.unread_sources() == ""
    (tmp_path / "nsswitch.conf").write_text("passwd: files sss\nsudoers: files [SUCCESS=continue] sss # LDAP\n")
    assert ssh.unread_sources() == "sss"


def test_an_account_of_ansible_that_nothing_names_is_let_in_and_stays() -> None:
    found = Administrators(("alice",), (), ("uid eq 1005",))
    rules = ssh.rules_for("gpu1", [], [NOGROUP], found, ["daemon", "jane doe", "alice", "nobody"])
    assert rules.logins == ("daemon", "jane doe")
    assert rules.conditions == ("uid eq 1005",)
    assert ssh.earlier_logins(changed(SSHD, rules)) == ["daemon", "jane doe"]


def test_the_account_of_the_login_is_known_from_sudo_and_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/loginuid").write_text(str(NOBODY.pw_uid))
    found = ssh.logins({"SUDO_USER": "operator"}, "", str(tmp_path))
    assert found == ["nobody", "operator"]
    (tmp_path / "proc/self/loginuid").write_text("4294967295")
    assert ssh.logins({}, "root", str(tmp_path)) == []


def test_a_name_that_would_be_more_than_a_name_in_a_rule_is_refused() -> None:
    wrong = ["x:y", "", "uid\n", " a", "a ", "-r", "a]", "a#b", "a\\"]
    assert [problem.evidence for problem in ssh.bad_names("gpu1", ["alice", "a b", *wrong])] == wrong
    assert [problem.evidence for problem in ssh.bad_names("gpu 1", [])] == ["gpu 1"]
