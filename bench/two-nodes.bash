# Runs the workloads of bench/two-nodes in a cluster that has a file system mounted at /mnt/1 and /mnt/2. Prints the
# run.json of each run on a line. Argument: the directory of the programs.
set -euo pipefail
programs=$1 work=/run/bench log=/run/bench/log
export AWS_ACCESS_KEY_ID=two-nodes AWS_SECRET_ACCESS_KEY=two-nodes-secret HOME=$work
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# The only network is the loopback device.
export OMPI_MCA_oob_tcp_if_include=lo OMPI_MCA_btl=self,vader

mkdir -p "$work"/{root,local,node1,node2,runs}
for node in 1 2; do printf '127.0.0.1 localhost\n127.0.0.%s gateway\n' "$node" >"$work/hosts$node"; done

# Runs its arguments on node $NODE, or on the node of this rank if NODE is not set. Paths and names are the same on both
# nodes.
cat >"$work/on-node" <<'ON'
#!/bin/bash
exec unshare --mount bash -ec '
    mount --bind "/mnt/$0/root" /run/bench/root
    mount --bind "/run/bench/node$0" /run/bench/local
    mount --bind "/run/bench/hosts$0" /etc/hosts
    exec "$@"' "${NODE:-$((OMPI_COMM_WORLD_RANK % 2 + 1))}" "$@"
ON
chmod +x "$work/on-node"

started=()
trap 'kill "${started[@]}" 2>/dev/null || true' EXIT
fail() {
    tail --lines 20 "$log"
    exit 1
}
for node in 1 2; do
    NODE=$node "$work/on-node" "$programs/fordway" node "$work/root" --socket "$work/local/node.sock" \
        --consistency strong >>"$log" 2>&1 &
    started+=($!)
    NODE=$node "$work/on-node" "$programs/fordway" serve "$work/root" --listen "127.0.0.$node:9000" \
        --etag fast --consistency strong >>"$log" 2>&1 &
    started+=($!)
done
for node in 1 2; do
    for _ in {1..100}; do
        [[ ! -S $work/node$node/node.sock ]] || ! (: <"/dev/tcp/127.0.0.$node/9000") 2>/dev/null || continue 2
        sleep 0.1
    done
    fail
done

# Plain files are in a directory of the same mount.
mkdir -p /mnt/1/root/.plain
targets=("$work/root/.plain" "file://$work/root?consistency=strong&durability=data" "unix://$work/local/node.sock"
    http://gateway:9000)
for ranks in ${RANKS:-1 2}; do
    for workload in "ior --block-size 4MiB --transfer-size 1MiB --fsync --reorder" \
        "mdtest --mode hard --items ${ITEMS:-200} --shift 1"; do
        run=$work/runs/${workload%% *}-$ranks.run
        # shellcheck disable=SC2086 # options are words
        timeout 600 mpirun -n $((2 * ranks)) --oversubscribe --bind-to none "$work/on-node" "$programs/fordway-mpi" \
            ${workload%% *} "${targets[@]}" ${workload#* } --rounds "${ROUNDS:-6}" --out "$run" >>"$log" 2>&1 || fail
        python3 -c 'import json, sys; print(json.dumps(json.load(open(sys.argv[1]))))' "$run/run.json"
    done
done
