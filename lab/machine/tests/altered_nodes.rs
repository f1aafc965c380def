//! Runs the doctor on a copy of a node, with some files changed to provoke one finding at a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fordway_machine::doctor::DoctorVerdict::{CannotSee, Costs, Ok as Fine};
use fordway_machine::doctor::{
    DoctorFinding, DoctorVerdict, SystemTree, examine, processors, remember_counters,
};
use tempfile::TempDir;

/// A machine with two sockets: processors 0 and 2 are on NUMA node 0, and 1 and 3 on NUMA node 1. The process may use
/// processors 0 and 2.
const NODE: &str = "bare-metal-infiniband";
const JOB: &str = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7";

struct AlteredNode(TempDir);

impl AlteredNode {
    fn new(files: &[(&str, &str)]) -> Self {
        let node = AlteredNode(tempfile::tempdir().unwrap());
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(NODE);
        copy(&from, node.0.path());
        files.iter().for_each(|(path, text)| node.write(path, text));
        node
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn finding(&self, check: &str) -> DoctorFinding {
        let findings = examine(&SystemTree::at(self.0.path()));
        findings.into_iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("no {check}"))
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let (from, to): (PathBuf, _) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        let kind = fs::symlink_metadata(&from).unwrap().file_type();
        if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from).unwrap(), &to).unwrap();
        } else if kind.is_dir() {
            fs::create_dir(&to).unwrap();
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

/// Asserts the verdict of one check on the altered node, and that the text of the finding contains the given words.
#[track_caller]
fn holds(files: &[(&str, &str)], check: &str, verdict: DoctorVerdict, words: &str) {
    let finding = AlteredNode::new(files).finding(check);
    assert_eq!(finding.verdict, verdict, "{finding:?}");
    assert!(finding.what.contains(words), "{check} says {:?}, not {words:?}", finding.what);
}

const STATUS: &str = "proc/self/status";

#[test]
fn memory_of_the_other_node_costs() {
    let status =
        |nodes: &str| format!("Name:\tranks\nCpus_allowed_list:\t0,2\nMems_allowed_list:\t{nodes}\n");
    holds(
        &[(STATUS, &status("1"))],
        "numa",
        Costs,
        "processors of node 0 may be used, but only memory of node 1",
    );
    holds(&[(STATUS, &status("0-1"))], "numa", Fine, "kept to one of 2");
    holds(&[(STATUS, &status("0"))], "numa", Fine, "kept to one of 2");
}

#[test]
fn every_processor_that_may_be_used_has_a_governor() {
    let of = |cpu: usize, name: &str| {
        (format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"), name.to_owned())
    };
    let altered = |governors: &[(String, String)]| {
        let files: Vec<_> = governors.iter().map(|(path, name)| (path.as_str(), name.as_str())).collect();
        AlteredNode::new(&files).finding("governor")
    };
    let mixed = altered(&[of(0, "performance"), of(2, "powersave")]);
    assert_eq!(mixed.verdict, Costs, "{mixed:?}");
    assert!(mixed.what.contains("powersave on processors 2"), "{mixed:?}");
    // The process is not allowed to use processor 1, so the governor of processor 1 does not matter.
    let other = altered(&[of(0, "performance"), of(1, "powersave"), of(2, "performance")]);
    assert_eq!(other.verdict, Fine, "{other:?}");
}

#[test]
fn a_ceiling_of_the_clock_costs() {
    let cpufreq = |cpu: usize, file: &str| format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/{file}");
    let node = AlteredNode::new(&[]);
    for cpu in [0, 2] {
        node.write(&cpufreq(cpu, "cpuinfo_max_freq"), "3500000\n");
        node.write(&cpufreq(cpu, "scaling_max_freq"), "3500000\n");
    }
    assert_eq!(node.finding("clock-limit").verdict, Fine);
    node.write(&cpufreq(2, "scaling_max_freq"), "800000\n");
    let limited = node.finding("clock-limit");
    assert_eq!(limited.verdict, Costs);
    assert!(limited.what.contains("processors 2 are limited to 0.8 GHz of 3.5 GHz"), "{limited:?}");
    assert_eq!(limited.measured[0].value, 0.8);
}

#[test]
fn memory_high_costs_if_it_was_reached() {
    let (high, events) = (format!("{JOB}/memory.high"), format!("{JOB}/memory.events"));
    let at = |times: &str| format!("low 0\nhigh {times}\nmax 0\noom 0\noom_kill 0\n");
    let limit = (high.as_str(), "8589934592\n");
    holds(
        &[limit, (&events, &at("918273"))],
        "memory-limit",
        Costs,
        "exceeded 8.0 GiB (memory.high) 918273 times",
    );
    holds(&[limit, (&events, &at("0"))], "memory-limit", Fine, "120.0 GiB");
}

/// The doctor on a running node judges by the increase of counters, and not by what happened long ago.
#[test]
fn counters_cost_if_they_increase() {
    let heat = "sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count".to_owned();
    let (events, stat) = (format!("{JOB}/memory.events"), format!("{JOB}/cpu.stat"));
    let hits = |times: u64| format!("low 0\nhigh 0\nmax {times}\noom 0\n");
    let periods = |throttled: u64| {
        format!("usage_usec 9\nnr_periods 500\nnr_throttled {throttled}\nthrottled_usec 1000000\n")
    };
    for (check, path, earlier, later) in [
        ("heat", heat, "17\n".to_owned(), "19\n".to_owned()),
        ("memory-limit", events, hits(5), hits(6)),
        ("throttling", stat, periods(5), periods(9)),
    ] {
        let node = AlteredNode::new(&[(&path, &earlier)]);
        assert_eq!(node.finding(check).verdict, Costs, "{check}: a copy has no second reading");
        let mut tree = SystemTree::at(node.0.path());
        remember_counters(&mut tree);
        let of = |tree: &SystemTree| {
            examine(tree).into_iter().find(|finding| finding.check == check).expect("the check exists")
        };
        let still = of(&tree);
        assert_eq!(still.verdict, Fine, "{still:?}");
        assert!(still.what.contains("this test, but"), "{still:?}");
        node.write(&path, &later);
        assert_eq!(of(&tree).verdict, Costs, "{check}");
    }
}

#[test]
fn threads_of_different_cores_do_not_share_them() {
    let of = |cpu: usize| format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let siblings = |a: &str, b: &str| AlteredNode::new(&[(&of(0), a), (&of(2), b)]).finding("smt");
    assert_eq!(siblings("0,4\n", "2,6\n").verdict, Fine);
    assert_eq!(siblings("0,2\n", "0,2\n").verdict, Costs);
}

#[test]
fn a_little_swap_does_not_matter() {
    let meminfo = |free: u64| format!("MemTotal: 131072000 kB\nSwapTotal: 4000000 kB\nSwapFree: {free} kB\n");
    holds(&[("proc/meminfo", &meminfo(4_000_000 - 12))], "memory-overcommit", Fine, "12 KiB are swapped out");
    holds(&[("proc/meminfo", &meminfo(3_000_000))], "memory-overcommit", Costs, "977 MiB are swapped out");
}

#[test]
fn an_interface_on_the_other_node_costs() {
    let path = "sys/class/net/ib0/0000:3b:00.0/numa_node";
    holds(&[(path, "1\n")], "nic-node", Costs, "attached to node 1");
    holds(&[(path, "0\n")], "nic-node", Fine, "attached to node 0");
    holds(&[(path, "-1\n")], "nic-node", CannotSee, "firmware does not say");
}

#[test]
fn heat_reclaim_windows_and_sleep_are_seen() {
    let throttled = "sys/devices/system/cpu/cpu2/thermal_throttle/core_throttle_count";
    holds(&[(throttled, "17\n")], "heat", Costs, "17 times");
    holds(&[(throttled, "0\n")], "heat", Fine, "no processor was throttled");
    holds(&[("proc/sys/vm/zone_reclaim_mode", "1\n")], "zone-reclaim", Costs, "vm.zone_reclaim_mode=1");
    holds(&[("proc/sys/vm/zone_reclaim_mode", "0\n")], "zone-reclaim", Fine, "off");
    holds(&[("proc/sys/net/ipv4/tcp_window_scaling", "0\n")], "tcp-buffers", Costs, "windows do not scale");
    let state =
        |number: usize, file: &str| format!("sys/devices/system/cpu/cpu0/cpuidle/state{number}/{file}");
    let node = AlteredNode::new(&[]);
    for (number, name, latency) in [(0, "POLL", "0"), (1, "C1", "2"), (2, "C6", "133")] {
        node.write(&state(number, "name"), name);
        node.write(&state(number, "latency"), latency);
        node.write(&state(number, "disable"), "0\n");
    }
    let deep = node.finding("sleep-states");
    assert_eq!(deep.verdict, Costs, "{deep:?}");
    assert!(deep.what.contains("C6") && deep.what.contains("133 µs"), "{deep:?}");
    node.write(&state(2, "disable"), "1\n");
    assert_eq!(node.finding("sleep-states").verdict, Fine);
}

#[test]
fn pressure_on_memory_and_disks_costs() {
    let pressure = |share: &str| {
        format!(
            "some avg10=0.00 avg60={share} avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
        )
    };
    for (resource, check, much) in [("memory", "memory-pressure", "1.50"), ("io", "disk-pressure", "31.00")] {
        let path = format!("proc/pressure/{resource}");
        holds(&[(&path, &pressure(much))], check, Costs, "of the last minute");
        holds(&[(&path, &pressure("0.20"))], check, Fine, "during 0.2 %");
    }
}

#[test]
fn a_node_of_absurd_size_is_examined_soon() {
    let all = "0-65535";
    let status = format!("Cpus_allowed_list:\t{all}\nMems_allowed_list:\t{all}\n");
    let node = AlteredNode::new(&[
        ("sys/devices/system/node/online", all),
        ("sys/devices/system/cpu/online", all),
        (STATUS, &status),
    ]);
    for number in 0..1200 {
        node.write(&format!("sys/devices/system/node/node{number}/cpulist"), "65536-131071,70000-131071");
    }
    let begun = Instant::now();
    examine(&SystemTree::at(node.0.path()));
    assert!(begun.elapsed() < Duration::from_secs(20), "it took {:?}", begun.elapsed());
}

/// The kernel lists 128 processors as allowed, although only four are online, as in many guests.
#[test]
fn processors_that_are_not_online_cannot_be_used() {
    let status = (STATUS, "Cpus_allowed_list:\t0-127\nMems_allowed_list:\t0-1\n");
    let quota = format!("{JOB}/cpu.max");
    holds(&[status, (&quota, "400000 100000\n")], "cpu-quota", Fine, "which is all 4 processors");
    holds(&[status, (&quota, "300000 100000\n")], "cpu-quota", Costs, "on 4 processors");
    let node = AlteredNode::new(&[status]);
    for cpu in 0..4 {
        node.write(
            &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"),
            &format!("{cpu}\n"),
        );
    }
    assert_eq!(node.finding("smt").verdict, Fine);
    assert_eq!(processors(&SystemTree::at(node.0.path())).unwrap(), [0, 1, 2, 3]);
    let offline = AlteredNode::new(&[(STATUS, "Cpus_allowed_list:\t6-7\n")]);
    assert_eq!(offline.finding("governor").verdict, CannotSee);
}

/// A file is missing for some processors, or its content is not a number.
#[test]
fn files_of_some_processors_or_without_a_number_are_unknown() {
    let count = |cpu: usize| format!("sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count");
    holds(
        &[(&count(1), "5\n")],
        "heat",
        CannotSee,
        "cpu0/thermal_throttle/core_throttle_count: there is no such file",
    );
    holds(&[(&count(0), "a lot\n")], "heat", CannotSee, "is not understood");
}

#[test]
fn empty_and_odd_files_are_not_ok() {
    holds(&[("sys/devices/system/node/online", "\n")], "numa", CannotSee, "/sys/devices/system/node/online");
    holds(&[("sys/devices/system/node/online", "\n")], "zone-reclaim", CannotSee, "cannot be read");
    let lists = [0, 1].map(|node| format!("sys/devices/system/node/node{node}/cpulist"));
    holds(&[(&lists[0], ""), (&lists[1], "")], "numa", CannotSee, "none of the 2 NUMA nodes");
    holds(&[("sys/devices/system/cpu/online", "\n")], "pinning", CannotSee, "/sys/devices/system/cpu/online");
    holds(&[("sys/devices/system/cpu/online", "\n")], "queues", CannotSee, "/sys/devices/system/cpu/online");
    holds(&[("proc/stat", "cpu 100 5\n")], "steal", CannotSee, "is not understood");
    holds(&[("proc/pressure/cpu", "some avg10=nan avg60=nan\n")], "pressure", CannotSee, "is not understood");
}

/// Most servers have unused ports.
#[test]
fn an_interface_that_is_down_costs_nothing() {
    let second = |state: &str| {
        let node = AlteredNode::new(&[
            ("sys/class/net/eno9/operstate", state),
            ("sys/class/net/eno9/mtu", "1500\n"),
            ("sys/class/net/eno9/speed", "-1\n"),
        ]);
        let device = node.0.path().join("sys/class/net/eno9/device");
        std::os::unix::fs::symlink("../ib0/0000:3b:00.0", device).unwrap();
        let findings = examine(&SystemTree::at(node.0.path()));
        findings.into_iter().any(|finding| finding.about.as_deref() == Some("eno9"))
    };
    assert!(second("up\n") && second("unknown\n"));
    assert!(!second("down\n"));
}

#[test]
fn a_single_processor_needs_no_binding() {
    let one = [
        ("sys/devices/system/cpu/online", "0\n"),
        (STATUS, "Name:\tranks\nCpus_allowed_list:\t0\nMems_allowed_list:\t0\n"),
    ];
    holds(&one, "pinning", Fine, "only one processor");
}

/// The cable of a card with two ports can be in the second port.
#[test]
fn the_active_port_of_a_device_counts() {
    let port = |number: u32, file: &str| format!("sys/class/infiniband/mlx5_0/ports/{number}/{file}");
    let [down, state, rate, layer] =
        [port(1, "state"), port(2, "state"), port(2, "rate"), port(2, "link_layer")];
    let key = port(2, "pkeys/0");
    let files = [
        (down.as_str(), "1: DOWN\n"),
        (&state, "4: ACTIVE\n"),
        (&rate, "200 Gb/sec (4X HDR)\n"),
        (&layer, "InfiniBand\n"),
        (&key, "0x7fff\n"),
    ];
    holds(&files, "rdma", Fine, "200 Gb/sec");
    holds(&files, "partition", Costs, "a limited member of 0x7fff only");
    holds(&files[..1], "rdma", Costs, "port 1 is \"1: DOWN\", and no other port is active");
}

/// Text that names no device is no limit.
#[test]
fn limits_on_disk_traffic_name_a_device() {
    for (text, verdict) in [
        ("", CannotSee),
        ("8:0 rbps=1048576 wbps=max riops=max wiops=max\n", Costs),
        ("259:0 rbps=max wbps=max riops=120 wiops=max\n8:0 rbps=1 wbps=1 riops=1 wiops=1\n", Costs),
        ("0-18446744073709551615\n", CannotSee),
        ("9223372036854775807 9223372036854775807\n", CannotSee),
        ("8:0\n", CannotSee),
        ("8:0 rbps=fast\n", CannotSee),
    ] {
        let finding = AlteredNode::new(&[(&format!("{JOB}/io.max"), text)]).finding("io-limit");
        assert_eq!(finding.verdict, verdict, "{text:?}: {finding:?}");
    }
}
