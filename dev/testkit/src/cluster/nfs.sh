# Starts a server and two clients, each with its own network namespace and host name. The names differ because a server
# treats clients with the same host name as one client.
export PATH=/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs fordway /tmp
mkdir /tmp/control
mount -t hostfs -o /run/fordway none /tmp/control
for dir in /run /mnt /var/lib/nfs; do mount -t tmpfs fordway "$dir"; done
mkdir -p /run/fordway /run/netns /run/bin /run/modules/lib /run/export /mnt/1 /mnt/2 /var/lib/nfs/v4recovery
mount --move /tmp/control /run/fordway
set -e
ulimit -n 65536 || true
ip link set lo up
ln -s /usr/lib/uml/modules /run/modules/lib/modules
printf '#!/bin/sh\nexec /sbin/modprobe -d /run/modules "$@"\n' >/run/bin/modprobe
chmod +x /run/bin/modprobe
echo /run/bin/modprobe >/proc/sys/kernel/modprobe
modprobe nfsd; modprobe veth; modprobe nfsv4
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/xtab
mount -t tmpfs export /run/export
mkdir /run/export/root
mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o rw,no_root_squash,no_subtree_check,insecure,fsid=0,async '*:/run/export'
rpc.nfsd --no-nfs-version 3 --lease-time 10 --grace-time 10 4
echo Y >/proc/fs/nfsd/v4_end_grace || true
rpc.mountd
for node in 1 2; do
    ip netns add "n$node"
    ip link add "v$node" type veth peer name eth0 netns "n$node"
    ip addr add "10.77.$node.1/24" dev "v$node"
    ip link set "v$node" up
    ip -n "n$node" addr add "10.77.$node.2/24" dev eth0
    ip -n "n$node" link set eth0 up
    nsenter "--net=/run/netns/n$node" unshare --uts \
        sh -c "hostname n$node && mount -t nfs -o vers=4.2 10.77.$node.1:/ /mnt/$node"
done
set +e
