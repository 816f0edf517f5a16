# SPDX-License-Identifier: GPL-3.0-or-later
"""The callback plugin progress, in real runs of ansible-playbook on this machine."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import subprocess
import sys
import termios
import time

import pytest

from tests.unit.project.tree import BIN, ROOT, try_run
from tests.unit.terminal import read_to_end

HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
# Nothing listens on port 9 (discard) of this machine.
DEAD = {"ansible_host": "127.0.0.1", "ansible_port": 9}

PLAYBOOK = """
- name: First things
  hosts: all
  gather_facts: false
  tasks:
    - name: Greet
      ansible.builtin.debug:
        msg: good morning
    - name: Need the host
      ansible.builtin.command: "true"
    - name: Look at the disk
      baremetal.gpu.refuse:
        problems: [{cause: the disk is full., remedy: free some space}]
      when: inventory_hostname == 'full'
    - name: Try it
      block:
        - name: Break
          ansible.builtin.command: "false"
          when: inventory_hostname == 'mended'
      rescue:
        - name: Mend
          ansible.builtin.debug:
            msg: mended
    - name: Do not mind
      ansible.builtin.command: "false"
      ignore_errors: true
      changed_when: false
- name: Second things
  hosts: all
  gather_facts: false
  tasks:
    - name: Keep a secret
      ansible.builtin.command: "false"
      environment:
        SECRET: hunter2
      no_log: true
      when: inventory_hostname == 'secretive'
"""


@pytest.fixture
def play(tmp_path):
    """Run a playbook with the callback and return what became of it."""
    environment = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "baremetal.gpu.progress",
        "ANSIBLE_FORCE_COLOR": "0",
        "COLUMNS": "100",
        "LINES": "30",
        "PYTHONUTF8": "1",
    }

    def run(hosts, *options, playbook=PLAYBOOK, **more):
        (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        (tmp_path / "play.yml").write_text(playbook)
        command = [BIN / "ansible-playbook", "-i", tmp_path / "hosts.json", tmp_path / "play.yml", *options]
        return try_run(command, cwd=tmp_path, **{**environment, **more})

    run.environment = environment
    run.directory = tmp_path
    return run


def test_without_a_terminal_only_failures_and_the_summary(play):
    done = play({"good": HERE, "full": HERE, "mended": HERE, "secretive": HERE, "dead": DEAD})
    # As Ansible ends where hosts failed and others could not be reached.
    assert done.returncode & 2 or done.returncode & 4
    assert done.stderr == ""
    text = done.stdout
    assert "\x1b" not in text
    assert "good morning" not in text
    assert re.search(r"✗ full failed in First things after \d+s: Look at the disk\n", text)
    assert "  cause:  the disk is full.\n  remedy: free some space\n" in text
    assert "✗ dead unreachable" in text
    assert "Connection refused" in " ".join(text.split())
    assert "`ssh dead`" in text
    assert "✗ mended" not in text
    assert "✗ good" not in text
    # What no_log hides stays hidden, and the reader is told so.
    assert "✗ secretive failed in Second things" in text
    assert "hidden by no_log" in text
    assert "hunter2" not in text
    assert re.search(r"5 hosts in \d+s: 2 done \(2 changed\), 2 failed, 1 unreachable\n$", text)
    assert re.search(r"^full +✗.*failed: Look at the disk$", text, re.MULTILINE)


EXPLAINED = """
- name: Bring it up
  hosts: all
  gather_facts: false
  tasks:
    - name: Install
      ansible.builtin.include_role:
        name: converge
    # On this machine the module refuses to do it; that is told, too.
    - name: Reboot where that is due
      ansible.builtin.reboot:
      when: inventory_hostname == 'stale'
"""
COMMON = """
- name: Mend what differs
  block:
    - name: Take time or break
      ansible.builtin.command: "{{ 'false' if inventory_hostname == 'full' else 'sleep 2' }}"
  rescue:
    - name: Tell why
      baremetal.gpu.refuse:
        problems: [{cause: the disk is full., remedy: free some space}]
"""


def test_without_a_terminal_a_reboot_and_a_failure_are_announced_before_more_is_known(play):
    tasks = play.directory / "roles" / "converge" / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "main.yml").write_text(COMMON)
    text = play({"full": HERE, "stale": HERE}, playbook=EXPLAINED).stdout
    announced, told, reboot, refused = (
        text.find(words)
        for words in (
            "… full fails in Bring it up after ",
            "✗ full failed in Bring it up after ",
            "↻ stale reboots in Bring it up after ",
            "✗ stale failed in Bring it up after ",
        )
    )
    assert "s: Take time or break; the cause follows when the others are through it\n" in text
    assert 0 <= announced < told < reboot < refused, text
    assert "  cause:  the disk is full.\n  remedy: free some space\n" in text


def test_a_run_without_trouble(play):
    done = play({"good": HERE}, playbook="- hosts: all\n  gather_facts: false\n  tasks: [{ping: }]\n")
    assert done.returncode == 0, done.stderr
    assert "✗" not in done.stdout
    assert re.search(r"1 host in \d+s: 1 done \(nothing changed\)\n$", done.stdout)


def test_verbose_tells_changes_and_messages(play):
    done = play({"good": HERE}, "-v")
    assert "good: Greet: good morning" in done.stdout
    assert "good: Need the host: changed" in done.stdout


def test_differences_are_shown_when_asked_for(play):
    playbook = f"""
- hosts: all
  gather_facts: false
  tasks:
    - name: Write
      ansible.builtin.copy:
        content: "new line"
        dest: {play.directory}/file
        mode: "0644"
"""
    done = play({"good": HERE}, "--check", "--diff", playbook=playbook)
    assert done.returncode == 0, done.stderr
    assert "good: Write\n" in done.stdout
    assert "+new line" in done.stdout
    assert not (play.directory / "file").exists()


def on_a_terminal(play, hosts, playbook, columns=100, answers=()):
    """What the program writes to a terminal of its own; answers are (what it asks, what is typed then)."""
    open_questions = list(answers)
    (play.directory / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    (play.directory / "play.yml").write_text(playbook)
    ours, theirs = pty.openpty()

    def answer(written):
        if open_questions and open_questions[0][0] in written:
            # Long enough for a picture to come over the question.
            time.sleep(2.5)
            os.write(ours, open_questions.pop(0)[1].encode())

    environment = {
        **os.environ,
        **play.environment,
        "TERM": "xterm",
        "COLUMNS": str(columns),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    environment.pop("NO_COLOR", None)
    environment.pop("ANSIBLE_NOCOLOR", None)
    with subprocess.Popen(
        [BIN / "ansible-playbook", "-i", "hosts.json", "play.yml"],
        cwd=play.directory,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # As of a terminal that somebody works at: its programs can be asked.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(theirs)
        written = read_to_end(ours, answer)
    return process.returncode, written


def screen(written):
    """The lines that are left on the terminal: enough of one to follow the picture."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if match := re.fullmatch(r"\x1b\[(\d+)A", part):
            row -= int(match[1])
        elif part == "\x1b[J":
            del lines[row + 1 :]
            lines[row] = ""
        elif part == "\n":
            row += 1
            if row == len(lines):
                lines.append("")
        elif part[0] not in "\x1b\r":
            lines[row] += part
    return [line.rstrip() for line in lines]


SLOW = """
- name: Slow things
  hosts: all
  gather_facts: false
  tasks:
    - name: Wait for the post
      ansible.builtin.command: sleep 2
      changed_when: false
    - name: Warn
      ansible.builtin.debug:
        msg: "{{ [] is superset([]) }}"
    - name: Look at the disk
      baremetal.gpu.refuse:
        problems: [{cause: the disk is full., remedy: free some space}]
      when: inventory_hostname == 'full'
"""


def test_a_terminal_sees_who_does_what_and_keeps_the_failures(play):
    rc, written = on_a_terminal(play, {"good": HERE, "full": HERE}, SLOW)
    assert rc == 2
    # The picture was drawn while the slow task ran, and once a second without an event.
    assert re.search(r"good.*Wait for the post", written)
    assert len(re.findall(r"\x1b\[J", written)) >= 2
    assert "2 hosts" in written
    assert "2 busy" in written
    # What stays is the failure and the summary, and nothing of the picture.
    left = "\n".join(screen(written))
    assert left.count("✗ full failed in Slow things") == 1
    assert "remedy: free some space" in left
    assert "busy" not in left
    assert re.search(r"2 hosts in \d+s: 1 done \(nothing changed\), 1 failed$", left.rstrip())


@pytest.mark.parametrize("columns", [80, 160])
def test_no_line_is_wider_than_the_terminal(play, columns):
    hosts = {f"a-rather-long-host-name-{number}.example.org": HERE for number in range(3)}
    rc, written = on_a_terminal(play, hosts, PLAYBOOK, columns)
    assert rc == 0
    plain = re.sub(r"\x1b\[[\d;]*[A-Za-z]", "", written)
    assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= columns


QUESTION = """
- name: Ask
  hosts: all
  gather_facts: false
  tasks:
    - name: Wait a little
      ansible.builtin.command: sleep 1
      changed_when: false
    - name: Ask for a word
      ansible.builtin.pause:
        prompt: What is the word
      register: said
    - name: Repeat it
      ansible.builtin.fail:
        msg: "the word is {{ said.user_input }}. Remedy: forget it"
"""


def test_a_question_stays_on_the_screen_until_it_is_answered(play):
    rc, written = on_a_terminal(play, {"good": HERE}, QUESTION, answers=[("What is the word", "sesame\r")])
    assert rc == 2
    assert "the word is sesame" in " ".join(written.split())
    # Nothing was drawn between the question and the answer.
    asked = written.split("What is the word", 1)[1]
    assert "so far" not in asked.split("sesame", 1)[0]


def test_what_a_file_or_a_host_says_does_not_move_the_terminal(tmp_path):
    """With --diff and -v too, where Ansible's own colours are on."""
    evil = "\x1b]0;owned\x07\x1b[2Jgone\rforged: ok\x9b1m\u202e"
    content = json.dumps(evil)
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n"
        f"    - copy: {{content: {content}, dest: {tmp_path}/made}}\n"
        f"    - debug: {{msg: {content}}}\n    - fail: {{msg: {content}}}\n"
    )
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": {"here": HERE}}}))
    done = try_run(
        [BIN / "ansible-playbook", "-i", "hosts.json", "play.yml", "--diff", "-v"],
        cwd=tmp_path,
        ANSIBLE_STDOUT_CALLBACK="baremetal.gpu.progress",
        ANSIBLE_FORCE_COLOR="true",
    )
    assert "forged: ok" in done.stdout
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("forged")]
    for sign in ("\x1b]", "\x1b[2J", "\x07", "\r", "\x9b", "\u202e"):
        assert sign not in done.stdout, repr(sign)


TWO_PLAYS = """
- name: The only one
  hosts: full
  gather_facts: false
  tasks: [{baremetal.gpu.refuse: {problems: [{cause: the disk is full., remedy: free some space}]}}]
- name: The others
  hosts: all
  gather_facts: false
  tasks: [{ansible.builtin.debug: {msg: good morning}}]
"""


def test_hosts_are_not_called_done_where_ansible_ended_the_run_before_its_last_play(play):
    hosts = {"good": HERE, "full": HERE}
    greeting = "- {name: First, hosts: good, gather_facts: false, tasks: [{ansible.builtin.debug: {msg: hello}}]}\n"
    done = play(hosts, playbook=f"{greeting}{TWO_PLAYS}")
    assert re.search(r"2 hosts in \d+s: 0 done, 1 failed, 1 not finished", " ".join(done.stdout.split()))
    assert "1 plays were not begun" in " ".join(done.stdout.split())
