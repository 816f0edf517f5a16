# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the processes of a training in the pods of an Indexed Job, and begin them anew together.

Each pod says in a directory that all share which start of its processes it is at. Once all have said so, the first pod
writes down who is in this round. When one says something new, because it has failed or another pod has taken its place,
the others end their processes, too, and the next round begins. Nothing listens on a port that others could come to, and
no lost pod is waited for.

python3 pods.py PODS PROCESSES COMMAND..., with JOB and JOB_COMPLETION_INDEX in the environment.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

# Those of train.py: to go on later, and what another attempt would meet again.
AGAIN, REFUSED = 119, 2
# It has failed too often without getting on. The Job fails, too.
FAILED = 3
FAILURES_AT_MOST = 3
LOOK_S, GRACE_S = 0.5, 60.0
HERE = Path("rounds")


class Pod:
    """One of the pods.

    :param job: of another job's nothing counts that is in the directory.
    """

    def __init__(self, job: str, index: int, pods: int, processes: int, command: list[str]) -> None:
        self.job, self.index, self.pods, self.processes, self.command = job, index, pods, processes, command
        self.is_stopped = False
        self.mark = ""
        self.children: list[subprocess.Popen[bytes]] = []

    def stop(self, *_words: object) -> None:
        self.is_stopped = True
        self._signal(signal.SIGTERM)

    def run(self) -> int:
        HERE.mkdir(mode=0o700, exist_ok=True)
        while not self.is_stopped and self._says():
            members = self._meet()
            status = self._round(members) if members else AGAIN
            if status == 0:
                _write(HERE / "ended", self.job)
            # What ends a process after the end, such as the fault of a GPU, takes nothing away.
            if self._has_ended():
                return 0
            if status == REFUSED:
                return status
            if status not in (None, AGAIN) and not self.is_stopped and self._fails_again():
                print(f"It has ended with {status} for the third time without a new checkpoint.", flush=True)
                return FAILED
        if self._marks()[self.index] == self.mark:
            self._of(self.index).unlink()
        return AGAIN

    def _says(self) -> bool:
        """Say that we begin anew; False where another pod has taken our place."""
        if self.mark and self._marks()[self.index] != self.mark:
            return False
        self.mark = f"{self.job} {uuid.uuid4().hex}"
        _write(self._of(self.index), self.mark)
        return True

    def _fails_again(self) -> bool:
        """Note a failure; whether there were too many of them since the last checkpoint, also in pods before this."""
        last = max((path.name for path in Path("checkpoints").glob("*.json")), default="none")
        with (HERE / f"failures-{self.index}").open("a", encoding="utf-8") as file:
            file.write(f"{self.job} {last}\n")
        return _read(Path(file.name)).count(f"{self.job} {last}\n") >= FAILURES_AT_MOST

    def _has_ended(self) -> bool:
        return _read(HERE / "ended") == self.job

    def _of(self, index: int) -> Path:
        return HERE / f"pod-{index}"

    def _marks(self) -> list[str]:
        found = [_read(self._of(index)) for index in range(self.pods)]
        return [mark if mark.split(" ")[0] == self.job else "" for mark in found]

    def _meet(self) -> list[str]:
        """Who is in the round that this start of ours is in; nobody where we are to end."""
        while not self.is_stopped and not self._has_ended():
            marks = self._marks()
            if marks[self.index] != self.mark:
                break
            if self.index == 0 and all(marks):
                _write(HERE / "round", json.dumps(marks))
            # One of those may be of a pod that is gone. It says something else when another has come.
            if all(marks) and _read(HERE / "round") == json.dumps(marks):
                return marks
            time.sleep(LOOK_S)
        return []

    def _round(self, members: list[str]) -> int | None:
        """The exit status of our processes, of which one failed stands for all; None where others begin anew."""
        meeting = HERE / f"meeting-{members[0].split(' ')[1]}"
        meeting.mkdir(mode=0o700, exist_ok=True)
        common = {
            "MEETING": str((meeting / "processes").absolute()),
            "SLURM_NTASKS": str(self.pods * self.processes),
            "SLURM_NODEID": str(self.index),
            "SLURM_JOB_ID": self.job,
            "SLURM_RESTART_COUNT": meeting.name,
            "ALL_TELL": "1",
        }
        for local in range(self.processes):
            own = {"SLURM_PROCID": str(self.index * self.processes + local), "SLURM_LOCALID": str(local)}
            self.children.append(subprocess.Popen(self.command, env={**os.environ, **common, **own}))
        try:
            while True:
                statuses = [one.poll() for one in self.children]
                failed = [status for status in statuses if status]
                if failed:
                    return failed[0]
                if None not in statuses:
                    return 0
                if self._marks() != members:
                    return None
                time.sleep(LOOK_S)
        finally:
            self._end()
            shutil.rmtree(meeting, ignore_errors=True)

    def _end(self) -> None:
        """They get the time to write a checkpoint."""
        self._signal(signal.SIGTERM)
        end = time.monotonic() + GRACE_S
        while any(one.poll() is None for one in self.children) and time.monotonic() < end:
            time.sleep(LOOK_S / 5)
        self._signal(signal.SIGKILL)
        for one in self.children:
            one.wait()
        self.children.clear()

    def _signal(self, number: int) -> None:
        for one in self.children:
            if one.poll() is None:
                one.send_signal(number)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _write(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


def main() -> int:
    pods, processes, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    pod = Pod(os.environ["JOB"], int(os.environ.get("JOB_COMPLETION_INDEX", "0")), pods, processes, command)
    signal.signal(signal.SIGTERM, pod.stop)
    return pod.run()


if __name__ == "__main__":
    sys.exit(main())
