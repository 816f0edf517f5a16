#!/usr/bin/python3 -I
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for Slurm on one host: sbatch, srun, squeue, scancel, sacct and scontrol.

It is each of them by the name of a link to this file.

It is strict: an option that it does not know, a request that no node can satisfy, or a job of somebody else is refused
as the real commands refuse it. Jobs are real processes of their users. There is no daemon: each call first starts what
has room and notes what has ended, where its caller may; root may for everybody.

State is in $STAND_IN_SLURM, /run/stand-in-slurm by default, a directory that everybody may write to: nodes.json, and a
directory for each job. What a test wants to happen it writes there: `fate` of a job is a state in which it then ends,
or REQUEUE, with which it begins anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time

STATE = os.environ.get("STAND_IN_SLURM", "/run/stand-in-slurm")
ENDED = ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "PREEMPTED")
OPTIONS = [
    "job-name",
    "chdir",
    "output",
    "open-mode",
    "cpus-per-task",
    "gres",
    "mem",
    "time",
    "partition",
    "account",
    "qos",
    "constraint",
    "comment",
    "array",
]
RUNNER = """
cd "$2" && bash "$1/script" >"$3" 2>&1
echo $? >"$1/status.new" && mv "$1/status.new" "$1/status"
"""


def fail(text, status=1):
    sys.stderr.write(f"{os.path.basename(sys.argv[0])}: error: {text}\n")
    raise SystemExit(status)


def path(*parts):
    return os.path.join(STATE, *map(str, parts))


def read(*parts):
    with open(path(*parts)) as file:
        return json.load(file)


def write(value, *parts):
    with open(path(*parts) + ".new", "w") as file:
        json.dump(value, file)
    os.replace(path(*parts) + ".new", path(*parts))


def jobs():
    found = [read(name, "job") for name in os.listdir(STATE) if name.isdigit() and os.path.exists(path(name, "job"))]
    return sorted(found, key=lambda job: job["id"])


def text_of(job, name):
    try:
        with open(path(job["id"], name)) as file:
            return file.read().strip()
    except OSError:
        return ""


def uid():
    return os.getuid()


def mine(job):
    return uid() in (0, job["uid"])


def uses(job):
    return job["state"] in ("RUNNING", "COMPLETING")


def free(node, listed):
    has = [job for job in listed if uses(job) and job["node"] == node["name"]]
    taken = {one for job in has for one in job["positions"]}
    return {
        "positions": [one for one in range(node["gpus"]) if one not in taken],
        "cpus": node["cpus"] - sum(job["cpus"] for job in has),
        "memory": node["memory"] - sum(job["memory"] for job in has),
    }


def fits(job, node, there):
    right = not job["type"] or job["type"] == node["type"]
    gpus = not job["gpus"] or (right and len(there["positions"]) >= job["gpus"])
    return gpus and there["cpus"] >= job["cpus"] and there["memory"] >= job["memory"]


def alive(pid):
    try:
        os.killpg(pid, 0)
    except OSError:
        return False
    return True


def end(job, state, kill=True):
    job.update(state=state, ended=time.time())
    write(job, job["id"], "job")
    if kill and job.get("pid"):
        with contextlib.suppress(OSError):
            os.killpg(job["pid"], signal.SIGKILL)


def requeue(job):
    """As slurmctld does where a node fails, or somebody asks for it: the job waits for another start."""
    end(job, "PENDING")
    for name in ("fate", "status"):
        with contextlib.suppress(OSError):
            os.unlink(path(job["id"], name))
    job.update(restarts=job["restarts"] + 1, node="", positions=[], pid=None)
    job.pop("started", None)
    job.pop("ended", None)
    write(job, job["id"], "job")


def tick():
    """What slurmctld would do by now, as far as the caller may."""
    nodes = read("nodes.json")
    for job in jobs():
        if not mine(job) or job["state"] in ENDED:
            continue
        fate, status = text_of(job, "fate"), text_of(job, "status")
        if fate == "REQUEUE":
            requeue(job)
        elif fate:
            end(job, fate)
        elif job["state"] == "RUNNING" and time.time() > job["started"] + 60 * job["minutes"]:
            end(job, "TIMEOUT")
        elif status:
            job["status"] = int(status)
            end(job, "COMPLETED" if status == "0" else "FAILED", kill=False)
        elif job["state"] == "RUNNING" and not alive(job["pid"]):
            job["status"] = 1
            end(job, "FAILED", kill=False)
    before = False
    for job in jobs():
        if job["state"] != "PENDING":
            continue
        there = {node["name"]: free(node, jobs()) for node in nodes}
        node = next((node for node in nodes if node["up"] and fits(job, node, there[node["name"]])), None)
        if node is None or before:
            job["reason"] = "Priority" if before else "Resources"
            before = True
            if mine(job):
                write(job, job["id"], "job")
        elif mine(job):
            start(job, node, there[node["name"]])


def start(job, node, there):
    if known_uid(job["user"]) is None:
        # slurmd starts no job of an account that is gone.
        return
    person = pwd.getpwnam(job["user"])
    job.update(node=node["name"], positions=there["positions"][: job["gpus"]], started=time.time(), state="RUNNING")
    environment = {**job["environment"], "SLURM_JOB_ID": str(job["id"]), "SLURMD_NODENAME": node["name"]}
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, job["positions"]))

    def become():
        os.setsid()
        if uid() == 0:
            os.initgroups(person.pw_name, person.pw_gid)
            os.setgid(person.pw_gid)
            os.setuid(person.pw_uid)

    process = subprocess.Popen(
        ["bash", "-c", RUNNER, "job", path(job["id"]), job["chdir"], job["output"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        cwd="/",
        preexec_fn=become,
    )
    job["pid"] = process.pid
    write(job, job["id"], "job")


def sbatch(words):
    if words != ["--parsable"]:
        fail(f"unrecognized option in {words}")
    script = sys.stdin.read()
    if not script.startswith("#!"):
        fail("This does not look like a batch script.  The first line must start with #! followed by the path.")
    given = {}
    for line in script.splitlines():
        if line == "#SBATCH --no-requeue":
            given["no-requeue"] = True
            continue
        row = re.fullmatch(r"#SBATCH --([a-z-]+)=(.*)", line)
        if line.startswith("#SBATCH") and (row is None or row[1] not in OPTIONS):
            fail(f"unrecognized option '{line}'")
        if row:
            given[row[1]] = row[2]
    gres = re.fullmatch(r"gpu(?::([A-Za-z][A-Za-z0-9_.-]*))?:(\d+)", given.get("gres", "gpu:0"))
    memory = re.fullmatch(r"(\d+)M", given.get("mem", "1M"))
    if gres is None or memory is None or not given.get("time", "60").isdigit():
        fail("Invalid generic resource (gres), --mem or --time specification")
    if given.get("partition", "all") != "all":
        fail(f"invalid partition specified: {given['partition']}")
    if not os.path.isdir(given["chdir"]):
        fail(f"chdir({given['chdir']}) failed")
    user = pwd.getpwuid(uid()).pw_name
    if user == "root":
        fail("this stand-in runs no job of root")
    number = max([0, *(int(name) for name in os.listdir(STATE) if name.isdigit())]) + 1
    job = {
        "id": number,
        "user": user,
        "uid": uid(),
        "restarts": 0,
        "requeue": "no-requeue" not in given,
        "name": given.get("job-name", "sbatch"),
        "state": "PENDING",
        "reason": "None",
        "type": gres[1] or "",
        "gpus": int(gres[2]),
        "cpus": int(given.get("cpus-per-task", "1")),
        "memory": int(memory[1]),
        "minutes": int(given.get("time", "60")),
        "chdir": given["chdir"],
        "output": given.get("output", "/dev/null"),
        "comment": given.get("comment", ""),
        "environment": dict(os.environ),
        "submitted": time.time(),
        "positions": [],
        "node": "",
    }
    nodes = read("nodes.json")
    for node in nodes:
        whole = {"positions": list(range(node["gpus"])), "cpus": node["cpus"], "memory": node["memory"]}
        if fits(job, node, whole):
            break
    else:
        fail("Batch job submission failed: Requested node configuration is not available")
    os.mkdir(path(number), 0o755)
    with open(path(number, "script"), "w") as file:
        os.fchmod(file.fileno(), 0o700)
        file.write(script)
    write(job, number, "job")
    tick()
    print(number)


def answer(job):
    """The fields of squeue --json of 24.11 that are read."""
    started = job.get("started") or 0
    ends = job.get("ended") or (started + 60 * job["minutes"] if started else 0)
    waits = job["state"] == "PENDING"
    expected = 0
    if waits:
        expected = min((one["started"] + 60 * one["minutes"] for one in jobs() if uses(one)), default=0)

    def number(value):
        return {"set": bool(value), "infinite": False, "number": int(value)}

    gres = f"gpu:{job['type'] or 'a100'}:{job['gpus']}(IDX:{','.join(map(str, job['positions']))})"
    return {
        "job_id": job["id"],
        "array_job_id": number(0),
        "array_task_id": {"set": False, "infinite": False, "number": 0},
        "array_task_string": "",
        "name": job["name"],
        # That of an account which is gone is not known to Slurm either.
        "user_name": job["user"] if known_uid(job["user"]) is not None else None,
        "user_id": job.get("uid"),
        "restart_cnt": job.get("restarts", 0),
        "current_working_directory": job["chdir"],
        "account": "all",
        "partition": "all",
        "qos": "normal",
        "job_state": [job["state"]],
        "state_reason": job["reason"] if waits else "None",
        "state_description": "",
        "cpus": number(job["cpus"]),
        "comment": job["comment"],
        "admin_comment": text_of(job, "note"),
        "batch_host": job["node"],
        "nodes": job["node"],
        "job_resources": {"nodes": {"allocation": [{"name": job["node"]}]}} if job["node"] and uses(job) else {},
        "gres_detail": [gres] if job["gpus"] and uses(job) else [],
        "tres_req_str": f"cpu={job['cpus']},gres/gpu={job['gpus']}",
        "tres_alloc_str": "" if waits else f"cpu={job['cpus']},gres/gpu={job['gpus']}",
        "required_nodes": "",
        "submit_time": number(job["submitted"]),
        "start_time": number(expected if waits else started),
        "end_time": number(ends),
        "time_limit": number(job["minutes"]),
        "exit_code": {"status": [], "return_code": number(job.get("status", 0))},
    }


def formatted(job, form):
    person = known_uid(job["user"])
    told = {
        "%A": job["id"],
        "%U": job.get("uid", person),
        "%u": job["user"] if person is not None else job.get("uid"),
        "%T": job["state"],
        "%B": job["node"] or "n/a",
        "%Z": job["chdir"],
        "%j": job["name"],
        "%P": "all",
        "%a": "",
        "%q": "",
        "%l": f"{job['minutes'] // 1440}-{job['minutes'] // 60 % 24:02}:{job['minutes'] % 60:02}:00",
    }
    return re.sub("%[A-Za-z]", lambda found: str(told[found[0]]), form)


def known_uid(name):
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return None


def squeue(words):
    known = {"--json", "--all", "--noheader"}
    picked = {}
    for word in words:
        name, equals, value = word.partition("=")
        if word in known:
            continue
        if not equals or name not in ("--states", "--name", "--user", "--jobs", "--format", "--partition"):
            fail(f"unrecognized option '{word}'")
        picked[name] = value.split(",")
    form = ",".join(picked.pop("--format", []))
    # There is one partition, and no holders are in it.
    in_all = "all" in picked.pop("--partition", ["all"])
    found = jobs() if in_all else []
    states = picked.get("--states", ["PENDING", "RUNNING", "COMPLETING"])
    found = [job for job in found if states == ["all"] or job["state"] in states]
    for option, field in (("--name", "name"), ("--user", "user"), ("--jobs", "id")):
        if option in picked:
            found = [job for job in found if str(job[field]) in picked[option]]
    if "--json" in words:
        print(json.dumps({"jobs": [answer(job) for job in found]}))
    elif form:
        print("".join(f"{formatted(job, form)}\n" for job in found), end="")
    else:
        fail("this stand-in prints no table")


def scancel(words):
    picked = {}
    numbers = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name in ("--user", "--jobname"):
            picked[name] = value
        elif word.isdigit():
            numbers.append(int(word))
        else:
            fail(f"unrecognized option '{word}'")
    if not numbers:
        fail("No job identification provided")
    if "--user" in picked and known_uid(picked["--user"]) is None:
        fail(f"Invalid user name: {picked['--user']}")
    for number in numbers:
        job = next((one for one in jobs() if one["id"] == number), None)
        if job is None or job["state"] in ENDED:
            fail(f"Kill job error on job id {number}: Invalid job id specified")
        if picked.get("--user", job["user"]) != job["user"] or picked.get("--jobname", job["name"]) != job["name"]:
            continue
        if not mine(job):
            fail(f"Kill job error on job id {number}: Access/permission denied")
        end(job, "CANCELLED")


ACCOUNTED = ("JobIDRaw", "User", "Account", "Partition", "Start", "End", "NodeList", "AllocTRES")
SACCT = ["--allocations", "--duplicates", "--parsable2", "--noheader", "--noconvert", f"--format={','.join(ACCOUNTED)}"]


def sacct(words):
    """The jobs of one user or of all; whether they are within the times is not looked at."""
    rest = [word for word in words if word not in SACCT and not word.startswith(("--starttime=", "--endtime="))]
    if len(rest) != 1 or not (rest[0] == "--allusers" or rest[0].startswith("--user=")):
        fail(f"unrecognized option in {words}")
    if os.environ.get("TZ") != "UTC":
        fail("this stand-in tells times in UTC alone")
    if os.path.exists(path("no_accounting")):
        fail("Slurm accounting storage is disabled")
    for job in jobs():
        if rest[0] in ("--allusers", f"--user={job['user']}"):
            times = [job.get("started"), job.get("ended")]
            start, end = (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(one)) if one else "Unknown" for one in times)
            tres = f"cpu={job['cpus']},gres/gpu={job['gpus']}" if job["gpus"] else f"cpu={job['cpus']}"
            print("|".join([str(job["id"]), job["user"], "all", "all", start, end, job["node"], tres]))


def srun(words):
    """A further step in a job that runs."""
    number = program = None
    for position, word in enumerate(words):
        if word.startswith("--jobid=") and word.partition("=")[2].isdigit():
            number = int(word.partition("=")[2])
        elif not word.startswith("-"):
            program = words[position:]
            break
        elif word not in ("--quiet", "--overlap", "--ntasks=1", "--mem=0", "--cpu-bind=none"):
            fail(f"unrecognized option '{word}'")
    job = next((one for one in jobs() if one["id"] == number), None)
    if program is None or job is None or job["state"] != "RUNNING":
        fail(f"Unable to confirm allocation for job {number}: Invalid job id specified")
    if not mine(job):
        fail(f"Unable to create step for job {number}: Access/permission denied")
    # The lock goes with this program.
    os.execvpe(program[0], program, {**os.environ, "SLURM_JOB_ID": str(number), "SLURMD_NODENAME": job["node"]})


def node_line(node):
    listed = jobs()
    there = free(node, listed)
    used = [one for one in range(node["gpus"]) if one not in there["positions"]]
    gres = f"gpu:{node['type']}:{node['gpus']}" if node["gpus"] else "(null)"
    state = "DOWN*" if not node["up"] else "MIXED" if used else "IDLE"
    return (
        f"NodeName={node['name']} Arch=x86_64 CPUAlloc={node['cpus'] - there['cpus']} CPUEfctv={node['cpus']} "
        f"CPUTot={node['cpus']} CPULoad=0.1 Gres={gres} GresDrain=N/A "
        f"GresUsed=gpu:{node['type']}:{len(used)}(IDX:{','.join(map(str, used)) or 'N/A'}) NodeAddr={node['address']} "
        f"NodeHostName={node['name']} Version=24.11.5 RealMemory={node['memory']} "
        f"AllocMem={node['memory'] - there['memory']} FreeMem=1 Sockets=1 Boards=1 State={state} ThreadsPerCore=1 "
        f"Partitions=all  BootTime=2026-11-26T23:05:00 SlurmdStartTime=2026-11-26T23:05:00"
        + ("" if node["up"] else " Reason=Not responding [slurm@2026-11-27T18:43:02]")
    )


def scontrol(words):
    if words == ["ping"]:
        print("Slurmctld(primary) at head1 is UP")
    elif words == ["--all", "-o", "show", "partition"] or words == ["-o", "show", "partition", "all"]:
        print("PartitionName=all Default=YES Hidden=NO MaxTime=1-00:00:00 State=UP TotalCPUs=2 TotalNodes=2")
    elif words[:3] == ["-o", "show", "assoc_mgr"]:
        print("MaxJobsAccrue= MaxWallPJ= MaxTRESPJ=")
    elif words[:1] == ["update"] and len(words) == 3:
        number, minutes = re.fullmatch(r"JobId=([0-9]+) TimeLimit=([0-9]+)", " ".join(words[1:])).groups()
        job = next((one for one in jobs() if one["id"] == int(number) and one["state"] not in ENDED), None)
        if job is None:
            fail("Invalid job id specified")
        if uid():
            fail("Access/permission denied")
        write({**job, "minutes": int(minutes)}, job["id"], "job")
    elif words == ["-o", "show", "reservation"]:
        print("No reservations in the system")
    elif words[-2:] == ["show", "node"] and set(words[:-2]) <= {"-o", "--details"}:
        print("\n".join(map(node_line, read("nodes.json"))))
    elif words[:3] == ["-o", "show", "node"] and len(words) == 4:
        found = [node for node in read("nodes.json") if node["name"] == words[3]]
        if not found:
            fail(f"Node {words[3]} not found")
        print(node_line(found[0]))
    else:
        fail(f"invalid keyword: {words}")


def main():
    name = os.path.basename(sys.argv[0])
    if os.path.exists(path("down")):
        fail("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    with open(path("lock"), "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tick()
        commands = {"sbatch": sbatch, "srun": srun, "squeue": squeue, "scancel": scancel}
        commands |= {"sacct": sacct, "scontrol": scontrol}
        commands[name](sys.argv[1:])


if __name__ == "__main__":
    main()
