//! Runs the doctor on copies of nodes. Some copies were recorded on real nodes; the other copies were assembled from
//! documentation. The file `SOURCE` of each copy describes its origin.

use std::fs;
use std::path::{Path, PathBuf};

use fordway_machine::doctor::DoctorVerdict::{CannotSee, Costs, Ok as Fine};
use fordway_machine::doctor::{
    DoctorFinding, DoctorVerdict, JobScheduler, JobSize, SystemTree, examine, memory_limit_bytes,
};

const KINDS: [&str; 7] = [
    "vm-virtio",
    "pinned-cgroup",
    "overcommitted",
    "container-quota",
    "bare-metal-infiniband",
    "sriov-guest",
    "crowded-guest-v2",
];

fn node(kind: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(kind)
}

fn findings(kind: &str) -> Vec<DoctorFinding> {
    examine(&SystemTree::at(node(kind)))
}

fn found<'a>(findings: &'a [DoctorFinding], check: &str) -> &'a DoctorFinding {
    findings.iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("no {check}"))
}

/// Asserts that each check in `expected` has the given verdict, and that the text of its finding contains the given
/// words.
fn holds(kind: &str, expected: &[(&str, DoctorVerdict, &str)]) {
    let findings = findings(kind);
    for (check, verdict, words) in expected {
        let finding = found(&findings, check);
        assert_eq!(finding.verdict, *verdict, "{kind}: {finding:?}");
        assert!(finding.what.contains(words), "{kind}: {check} says {:?}, not {words:?}", finding.what);
    }
}

#[test]
fn every_copy_says_where_it_comes_from_and_is_tested() {
    let mut there: Vec<_> = fs::read_dir(node("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    there.sort();
    let mut tested = KINDS.to_vec();
    tested.sort_unstable();
    assert_eq!(there, tested);
    for kind in KINDS {
        let source = fs::read_to_string(node(kind).join("SOURCE")).unwrap();
        assert!(
            source.starts_with("Recorded by ") || source.starts_with("Assembled, not recorded: "),
            "{kind}"
        );
    }
}

#[test]
fn a_guest_with_virtio() {
    holds(
        "vm-virtio",
        &[
            ("nic-driver", Costs, "virtio_net"),
            ("link-speed", CannotSee, "does not report its speed"),
            ("mtu", Costs, "1400"),
            ("queues", Costs, "1 receive queues for 2"),
            ("rdma", CannotSee, "no RDMA device"),
            ("nesting", CannotSee, "can host other guests"),
            ("steal", Fine, "went to other guests"),
            ("cpu-quota", Fine, "no limit"),
            ("pinning", Costs, "all 2 processors"),
            ("memory-overcommit", CannotSee, "balloon"),
            ("clocksource", Fine, "tsc"),
            ("huge-pages", Costs, "only programs that request pages"),
            ("disk", CannotSee, "vda"),
        ],
    );
}

#[test]
fn a_job_with_a_processor_of_its_own() {
    holds(
        "pinned-cgroup",
        &[
            ("pinning", Fine, "1 of 2"),
            ("exclusive", Fine, "no other group"),
            ("cpu-quota", Fine, "no limit"),
        ],
    );
}

#[test]
fn more_work_than_the_quota_allows() {
    holds("overcommitted", &[("cpu-quota", Costs, "0.20 processors"), ("throttling", Costs, "stopped in")]);
    let findings = findings("overcommitted");
    let measured = &found(&findings, "throttling").measured;
    assert!(measured[0].value > 0.0 && measured[1].value > 0.0, "{measured:?}");
}

#[test]
fn a_container_with_limits_and_no_interface() {
    holds(
        "container-quota",
        &[
            ("cpu-quota", Costs, "1.50 processors' worth of time on 2"),
            ("memory-limit", Fine, "2.0 GiB"),
            ("link-speed", CannotSee, "container's own network"),
        ],
    );
    assert_eq!(memory_limit_bytes(&SystemTree::at(node("container-quota"))), Some(2 << 30));
    assert_eq!(memory_limit_bytes(&SystemTree::at(node("missing"))), None);
}

#[test]
fn bare_metal_with_infiniband() {
    holds(
        "bare-metal-infiniband",
        &[
            ("link-speed", Fine, "100 Gbit/s"),
            ("nic-driver", Fine, "a card's own driver"),
            ("rdma", Fine, "100 Gb/sec"),
            ("partition", Fine, "0xffff"),
            ("nesting", Fine, "no hypervisor"),
            ("steal", Fine, "no hypervisor"),
            ("smt", Costs, "two threads"),
            ("numa", Fine, "one of 2"),
            ("memory-limit", Fine, "120.0 GiB"),
            ("governor", Fine, "performance"),
            ("irq-spread", Fine, "33 %"),
            ("disk", Fine, "nvme0n1"),
        ],
    );
}

#[test]
fn a_guest_with_a_function_of_a_card() {
    holds(
        "sriov-guest",
        &[
            ("nic-driver", Fine, "only this guest uses (SR-IOV"),
            ("rdma", Costs, "no /dev/infiniband/uverbs"),
            ("partition", Costs, "limited member of 0x7fff"),
            ("irq-spread", Costs, "100 %"),
            ("steal", CannotSee, "does not report"),
            ("mtu", Fine, "9000"),
        ],
    );
}

#[test]
fn a_crowded_guest_with_groups_of_version_2() {
    holds(
        "crowded-guest-v2",
        &[
            ("link-speed", Costs, "1 Gbit/s"),
            ("nic-driver", Costs, "emulates"),
            ("mtu", Costs, "tunnel"),
            ("tcp-buffers", Costs, "0.2 MiB"),
            ("steal", Costs, "14.7 %"),
            ("pressure", Costs, "31.5 %"),
            ("cpu-quota", Costs, "2.50 processors' worth of time on 4"),
            ("throttling", Costs, "25.0 % of its periods, 60.0 s"),
            ("numa", Costs, "2 of 2"),
            ("memory-overcommit", Costs, "977 MiB"),
            ("memory-limit", Costs, "reached 37 times"),
            ("clocksource", Costs, "acpi_pm"),
            ("io-limit", Costs, "rbps=52428800"),
            ("disk", Costs, "turning"),
        ],
    );
}

#[test]
fn whatever_costs_says_what_to_do_and_what_was_read() {
    for finding in KINDS.iter().flat_map(|kind| findings(kind)) {
        if finding.verdict != Fine {
            assert!(finding.advice.is_some() || finding.what.starts_with("cannot be read"), "{finding:?}");
        }
        if finding.verdict == Costs {
            assert!(!finding.read.is_empty(), "{finding:?}");
        }
    }
}

/// In this tree, every file exists but no file can be read.
#[test]
fn what_cannot_be_read_is_told_as_such() {
    let place = tempfile::tempdir().unwrap();
    let files = ["proc/stat", "proc/self/status", "proc/self/cgroup", "proc/sys/net/ipv4/tcp_rmem"];
    for file in files {
        // Create a directory in place of each file, because even root cannot read a directory as a file.
        fs::create_dir_all(place.path().join(file)).unwrap();
    }
    let findings = examine(&SystemTree::at(place.path()));
    for (check, file) in
        [("steal", files[0]), ("pinning", files[1]), ("cpu-quota", files[2]), ("tcp-buffers", files[3])]
    {
        let finding = found(&findings, check);
        assert_eq!(finding.verdict, CannotSee);
        assert!(finding.what.starts_with(&format!("cannot be read: /{file}: ")), "{}", finding.what);
    }
}

fn fix(kind: &str, fix: JobScheduler) -> String {
    let tree = SystemTree::at(node(kind));
    fix.text(&examine(&tree), JobSize::filling(&tree, 4).unwrap())
}

#[test]
fn slurm_is_asked_for_what_was_found_and_no_more() {
    let crowded = fix("crowded-guest-v2", JobScheduler::Slurm);
    for option in
        ["--nodes=4", "--exclusive", "--mem=0", "--hint=nomultithread", "--mem-bind=local", "--core-spec=1"]
    {
        assert!(crowded.contains(&format!("#SBATCH {option}\n")), "{option} is missing in {crowded}");
    }
    assert!(crowded.contains("# Not by an option: clocksource: "), "{crowded}");
    // One of the two cores is reserved for the system, and a core runs one rank.
    assert!(crowded.contains("--ntasks-per-node=1\n"), "{crowded}");
    let metal = fix("bare-metal-infiniband", JobScheduler::Slurm);
    for option in ["--mem=0", "--mem-bind", "--core-spec", "--cpu-freq", "Not by an option"] {
        assert!(!metal.contains(option), "{option} in {metal}");
    }
}

/// A job must fit on the nodes that were examined, although a core or a processor is reserved.
#[test]
fn a_job_asks_for_no_more_than_a_node_has() {
    let place = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = place.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    let sized = |processors: usize, threads: usize| {
        let all = format!("0-{}", processors - 1);
        write("proc/meminfo", "MemTotal:       1048576 kB\n");
        write("proc/self/status", &format!("Cpus_allowed_list:\t{all}\n"));
        write("sys/devices/system/cpu/online", &format!("{all}\n"));
        for cpu in 0..processors {
            let first = cpu / threads * threads;
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            write(&path, &format!("{first}-{}\n", first + threads - 1));
        }
        JobSize::filling(&SystemTree::at(place.path()), 2).unwrap()
    };
    let crowded = examine(&SystemTree::at(node("crowded-guest-v2")));
    let ranks = |job| JobScheduler::Slurm.text(&crowded, job);
    assert!(ranks(sized(128, 2)).contains("--ntasks-per-node=63\n"), "64 cores, one reserved");
    let single = ranks(sized(1, 1));
    assert!(single.contains("--ntasks-per-node=1\n") && !single.contains("--core-spec"), "{single}");
    let pods = |job| JobScheduler::Kubernetes.text(&crowded, job);
    let manifests = pods(sized(8, 2));
    // Seven processors are left, which are three whole cores and one thread.
    assert!(manifests.contains("full-pcpus-only") && manifests.contains("reservedSystemCPUs"), "{manifests}");
    assert!(manifests.contains("            cpu: 6\n") && manifests.contains("    cpu: 12\n"), "{manifests}");
    assert!(!pods(sized(1, 1)).contains("reservedSystemCPUs"));
    let guest = fix("sriov-guest", JobScheduler::Kubernetes);
    assert!(guest.contains("reservedSystemCPUs") && guest.contains("            cpu: 3\n"), "{guest}");
}

#[test]
fn kubelets_are_told_what_pods_cannot_ask_for() {
    let crowded = fix("crowded-guest-v2", JobScheduler::Kubernetes);
    for line in [
        "cpuManagerPolicy: static",
        // Pods that fill a node with several NUMA nodes must be admitted, and the kubelet must start.
        "topologyManagerPolicy: best-effort",
        "memoryManagerPolicy: Static",
        "reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]",
        "hostNetwork: true",
        "minMember: 4",
    ] {
        assert!(crowded.contains(line), "{line} is missing in {crowded}");
    }
    assert!(!fix("bare-metal-infiniband", JobScheduler::Kubernetes).contains("hostNetwork"));
}
