# Starts a monitor, a metadata server, and an object storage daemon (OSD) that keeps all data in
# memory.
set -eu
export PATH=$PATH:/usr/sbin:/sbin CEPH_CONF=/run/ceph/ceph.conf
ulimit -n 65536 || true
mount -t proc proc /proc
mount -t tmpfs fordway /mnt
mkdir -p /run/ceph/mon /run/ceph/mds /run/ceph/osd /mnt/1 /mnt/2
fsid=$(cat /proc/sys/kernel/random/uuid)
cat >"$CEPH_CONF" <<END
[global]
fsid = $fsid
mon_host = [v2:10.88.0.1:3300,v1:10.88.0.1:6789]
public_addr = 10.88.0.1
cluster_addr = 10.88.0.1
ms_bind_ipv6 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
run_dir = /run/ceph
admin_socket = /run/ceph/\$name.\$pid.asok
pid_file = /run/ceph/\$name.\$pid.pid
log_file = /run/ceph/\$name.\$pid.log
mon_data = /run/ceph/mon
mds_data = /run/ceph/mds
osd_data = /run/ceph/osd
osd_objectstore = memstore
memstore_device_bytes = 2147483648
osd_class_load_list = *
osd_class_default_list = *
mds_cache_memory_limit = 268435456
osd_memory_target = 939524096
END
ceph() { timeout 60 /usr/bin/ceph "$@"; }
monmaptool --create --fsid "$fsid" --addv x '[v2:10.88.0.1:3300,v1:10.88.0.1:6789]' /run/ceph/monmap
ceph-mon --mkfs -i x --monmap /run/ceph/monmap
ceph-mon -i x
ceph osd new "$fsid"
ceph-osd -i 0 --mkfs --osd-uuid "$fsid" --monmap /run/ceph/monmap
ceph-osd -i 0
ceph osd pool create meta 8
ceph osd pool create data 8
ceph fs new fordway meta data
ceph-mds -i x
tries=0
until ceph mds stat | grep -q up:active; do
    tries=$((tries + 1)); [ "$tries" -lt 100 ]; sleep .3
done
for node in 1 2; do
    ceph-fuse --id admin "/mnt/$node"
done
mkdir /mnt/1/root
set +eu
