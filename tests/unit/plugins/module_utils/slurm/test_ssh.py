# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines of PAM that let users in only where they have a job, asked of the PAM of this machine."""

from __future__ import annotations

import ctypes.util
import grp
import pwd
import sys
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import ssh
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.ssh import Rules

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


def test_administrators_are_whom_sudo_lets_run_everything_as_root() -> None:
    assert ssh.sudoers(CVTSUDOERS, "gpu1") == (["carol"], ["sudo", "ops"])


@pytest.mark.parametrize("hostname", ["node7", "node7.example.org"])
def test_administrators_of_one_host_are_those_of_that_host(hostname: str) -> None:
    assert ssh.sudoers(CVTSUDOERS, hostname) == (["carol", "dave"], ["sudo", "ops"])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"User_Specs": [{}]}', '{"User_Specs": 3}', "null"])
def test_what_is_no_list_of_sudo_names_nobody(text: str) -> None:
    assert ssh.sudoers(text, "gpu1") == ([], [])


def test_an_account_of_ansible_that_nothing_names_is_let_in_and_stays() -> None:
    rules = ssh.rules_for("gpu1", [], [NOGROUP], (["alice"], []), ["daemon", "alice", "nobody"])
    assert rules.logins == ("daemon",)
    assert ssh.earlier_logins(changed(SSHD, rules)) == ["daemon"]


def test_the_account_of_the_login_is_known_from_sudo_and_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/loginuid").write_text(str(NOBODY.pw_uid))
    found = ssh.logins({"SUDO_USER": "operator"}, "", str(tmp_path))
    assert found == ["nobody", "operator"]
    (tmp_path / "proc/self/loginuid").write_text("4294967295")
    assert ssh.logins({}, "root", str(tmp_path)) == []


def test_a_name_that_would_be_more_than_a_word_of_a_rule_is_refused() -> None:
    assert [problem.evidence for problem in ssh.bad_names(["alice", "a b", "x:y", "", "uid\n"])] == [
        "a b",
        "x:y",
        "",
        "uid\n",
    ]
