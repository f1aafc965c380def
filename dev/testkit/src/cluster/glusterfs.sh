# Starts a volume of two bricks, and mounts it twice. GlusterFS refuses loopback addresses, so the server uses an
# address of another interface.
set -eu
export PATH=$PATH:/usr/sbin:/sbin
ulimit -n 65536 || true
mount -t proc proc /proc
for dir in /var/lib/glusterd /var/log /mnt; do mount -t tmpfs fordway "$dir"; done
mkdir -p /run/gluster /run/bricks/1 /run/bricks/2 /var/log/glusterfs /mnt/1 /mnt/2
printf '%s\n' 'volume management' 'type mgmt/glusterd' 'option working-directory /var/lib/glusterd' \
    'option transport-type socket' 'option transport.socket.bind-address 10.88.0.1' \
    'option transport.address-family inet' 'end-volume' >/run/glusterd.vol
glusterd --volfile=/run/glusterd.vol --pid-file=/run/glusterd.pid
gluster() { command gluster --mode=script "$@"; }
tries=0
until gluster volume list >/dev/null 2>&1; do
    tries=$((tries + 1)); [ "$tries" -lt 300 ]; sleep .1
done
gluster volume create fordway replica 2 10.88.0.1:/run/bricks/1 10.88.0.1:/run/bricks/2 force
gluster volume start fordway
for node in 1 2; do
    glusterfs --volfile-server=10.88.0.1 --volfile-id=fordway "/mnt/$node"
    tries=0
    until mountpoint -q "/mnt/$node" && stat "/mnt/$node/." >/dev/null 2>&1; do
        tries=$((tries + 1)); [ "$tries" -lt 300 ]; sleep .1
    done
done
mkdir /mnt/1/root
set +eu
