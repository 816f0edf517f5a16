#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# A whole Ceph on one machine and nothing on a disk: a mon, a mgr, an MDS and an OSD in memory.
# For tests of what talks to a cluster; the roles build real ones. Usage: one_node.sh ADDRESS
set -eu
address=$1

host=$(hostname -s)

if ! command -v ceph-fuse >/dev/null || ! command -v ceph-osd >/dev/null; then
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends \
        ceph-mon ceph-mgr ceph-mds ceph-osd ceph-common ceph-fuse uuid-runtime >/dev/null
fi
fsid=$(uuidgen)
mkdir -p /etc/ceph
cat >/etc/ceph/ceph.conf <<CONF
[global]
fsid = $fsid
mon_host = [v2:$address:3300,v1:$address:6789]
osd_objectstore = memstore
memstore_device_bytes = 2147483648
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
auth_allow_insecure_global_id_reclaim = false
CONF

# The password hashing of Debian 13's mgr cannot be loaded twice into a process; nothing here hashes passwords.
case $(ceph-mgr --version) in
*' 18.'*) printf '%s\n' 'def __getattr__(name):' '    raise NotImplementedError(name)' >/usr/share/ceph/mgr/bcrypt.py ;;
esac

umask 077
keys=$(mktemp)
ceph-authtool --create-keyring "$keys" --gen-key -n mon. --cap mon 'allow *' >/dev/null
ceph-authtool --create-keyring /etc/ceph/ceph.client.admin.keyring --gen-key -n client.admin \
    --cap mon 'allow *' --cap osd 'allow *' --cap mds 'allow *' --cap mgr 'allow *' >/dev/null
ceph-authtool "$keys" --import-keyring /etc/ceph/ceph.client.admin.keyring >/dev/null
map=$(mktemp -u)
monmaptool --create --fsid "$fsid" --addv "$host" "[v2:$address:3300,v1:$address:6789]" --enable-all-features "$map" \
    >/dev/null
chown ceph:ceph "$keys" "$map"
install -d -o ceph -g ceph "/var/lib/ceph/mon/ceph-$host"
ceph-mon --mkfs -i "$host" --monmap "$map" --keyring "$keys" --setuser ceph --setgroup ceph
rm -f "$keys" "$map"
systemctl start "ceph-mon@$host"

daemon() { # kind, name, capabilities
    kind=$1 name=$2
    shift 2
    install -d -o ceph -g ceph "/var/lib/ceph/$kind/ceph-$name"
    ceph auth get-or-create "$kind.$name" "$@" >"/var/lib/ceph/$kind/ceph-$name/keyring"
    chown ceph:ceph "/var/lib/ceph/$kind/ceph-$name/keyring"
}
daemon mgr "$host" mon 'allow profile mgr' osd 'allow *' mds 'allow *'
systemctl start "ceph-mgr@$host"
ceph config set mgr mgr/restful/active false 2>/dev/null || :
ceph mgr module disable restful 2>/dev/null || :
osd=$(uuidgen)
ceph osd new "$osd" >/dev/null
daemon osd 0 mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *'
chmod 755 /var/lib/ceph/osd
ceph-osd -i 0 --mkfs --osd-uuid "$osd" --setuser ceph --setgroup ceph 2>/dev/null
systemctl start ceph-osd@0
daemon mds "$host" mon 'allow profile mds' osd 'allow rwx' mds allow mgr 'allow profile mds'
systemctl start "ceph-mds@$host"

for _ in $(seq 60); do
    ceph -s --format json 2>/dev/null | grep -q '"num_up_osds":1' && exit 0
    sleep 1
done
ceph -s >&2
exit 1
