#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Record what a cluster of one_node.sh answers to the commands that the modules read, as one JSON document.
# Keys in it belong to the cluster of that hour, which is gone. Usage: capture.sh > captured-VERSION.json
set -eu
do_quietly() { "$@" >/dev/null 2>&1 || { echo "failed: $*" >&2; exit 1; }; }
do_quietly ceph osd pool create home_meta
do_quietly ceph osd pool create home_data --bulk
do_quietly ceph osd pool set-quota home_data max_bytes 1000000000
ceph fs get homefs >/dev/null 2>&1 || do_quietly ceph fs new homefs home_meta home_data
do_quietly ceph config set osd/class:ssd osd_memory_target 4G
do_quietly ceph config set mon auth_allow_insecure_global_id_reclaim false
for _ in $(seq 60); do ceph fs dump --format json 2>/dev/null | grep -q '"state":"up:active"' && break; sleep 1; done
do_quietly ceph fs subvolumegroup create homefs homes
do_quietly ceph fs subvolume create homefs alice --group_name homes --size 100000000 --uid 2001 --gid 2001 --mode 700 \
    --namespace-isolated
do_quietly ceph fs subvolume snapshot create homefs alice before --group_name homes
do_quietly ceph auth get-or-create client.alice mon 'allow r' osd 'allow rw pool=home_data'
sleep 5

first=yes
record() { # the command's words
    answer=$(ceph "$@" --format json 2>/dev/null) && rc=0 || rc=$?
    [ -n "$answer" ] || answer=null
    [ $first = yes ] || printf ',\n'
    first=no
    printf '  "%s": {"rc": %s, "answer": %s}' "$*" "$rc" "$answer"
}
printf '{\n  "captured": "%s; tests/roles/ceph/capture.sh on a cluster of tests/roles/ceph/one_node.sh",\n' \
    "$(ceph --version | cut -d' ' -f1-4)"
record auth get client.alice
record auth get client.nobody
record config dump
record config help osd_memory_target
record config help no_such_option
record osd pool ls detail
record osd crush rule dump
record osd dump
record df detail
record osd pool get home_data size
record fs dump
record fs subvolumegroup ls homefs
record fs subvolumegroup ls nofs
record fs subvolume info homefs alice --group_name homes
record fs subvolume info homefs nobody --group_name homes
record fs subvolume ls homefs --group_name homes
record fs subvolume snapshot ls homefs alice --group_name homes
record mgr module ls
printf '\n}\n'
