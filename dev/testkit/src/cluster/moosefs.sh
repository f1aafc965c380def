# Starts a master and two chunk servers, with each file on both chunk servers. MooseFS refuses loopback addresses, so
# the servers use an address of another interface.
set -eu
export PATH=$PATH:/usr/sbin:/sbin
ulimit -n 65536 || true
mount -t proc proc /proc
mount -t tmpfs fordway /mnt
mkdir -p /run/mfs/master /mnt/1 /mnt/2
cd /run/mfs
cat >common.cfg <<'END'
WORKING_USER = root
WORKING_GROUP = root
LOCK_MEMORY = 0
END
printf '* / rw,alldirs,maproot=0\n* . rw\n' >exports.cfg
: >topology.cfg
cp "${MFS_EMPTY:-/var/lib/mfs/metadata.mfs.empty}" master/metadata.mfs
{
    cat common.cfg
    printf '%s\n' 'DATA_PATH = /run/mfs/master' 'EXPORTS_FILENAME = /run/mfs/exports.cfg' \
        'TOPOLOGY_FILENAME = /run/mfs/topology.cfg'
    printf '%s_LISTEN_HOST = 10.88.0.1\n' MATOML MATOCS MATOCL
} >master.cfg
mfsmaster -c /run/mfs/master.cfg start
for server in 1 2; do
    mkdir -p "chunk$server" "disk$server"
    echo "/run/mfs/disk$server" >"disk$server.cfg"
    {
        cat common.cfg
        printf '%s\n' "DATA_PATH = /run/mfs/chunk$server" "HDD_CONF_FILENAME = /run/mfs/disk$server.cfg" \
            'HDD_LEAVE_SPACE_DEFAULT = 16MiB' 'MASTER_HOST = 10.88.0.1' 'CSSERV_LISTEN_HOST = 10.88.0.1' \
            "CSSERV_LISTEN_PORT = 942$((1 + server))"
    } >"chunk$server.cfg"
    mfschunkserver -c "/run/mfs/chunk$server.cfg" start
done
for node in 1 2; do
    mfsmount -H 10.88.0.1 "/mnt/$node"
done
# Content can be written once the chunk servers have registered.
tries=0
until echo content >/mnt/1/up && sync /mnt/1/up; do
    tries=$((tries + 1)); [ "$tries" -lt 300 ]; sleep .1
done 2>/dev/null
rm /mnt/1/up
mkdir /mnt/1/root
set +eu
