//! Checks of the network of this node: its interfaces, the distribution of their interrupts over processors, and
//! alternatives to TCP/IP such as InfiniBand, RoCE and EFA.

use super::DoctorCheckResult;
use super::memory::UsableNumaNodes;
use super::processors::online;
use crate::doctor::FindingDraft;
use crate::doctor::tree::{SystemTree, UnreadableFile, shown};

/// Richter's minimum link speed, in Mbit/s.
const SPEED_LEAST: i64 = 10_000;
/// Richter's recommended link speed, in Mbit/s.
const SPEED_BETTER: i64 = 40_000;
/// Richter's minimum number of PCIe lanes.
const LANES_LEAST: u32 = 8;
/// The number of receive queues above which further queues rarely help a single process.
const QUEUES_ENOUGH: usize = 16;
/// A round-trip time within one data centre. TCP's buffers must be large enough for connections with this round-trip
/// time.
const ROUND_TRIP_S: f64 = 1e-3;

/// The kind of network interface, inferred from the driver.
enum NetworkInterfaceKind {
    /// A device emulated by the host.
    Emulated,
    /// A paravirtual queue served by software on the host.
    Paravirtual,
    /// A virtual function: a partition of a card, assigned exclusively to this guest.
    VirtualFunction,
    /// A physical card, or a virtual function that uses the same driver as the card.
    Card,
}

/// Returns the interfaces that are backed by a device and not down. Loopback and bridges are not backed by a device.
/// Most servers have unused ports, which are down and cost nothing.
pub(super) fn interfaces(tree: &SystemTree) -> Vec<String> {
    let names = tree.names("sys/class/net").unwrap_or_default();
    let has_device = |name: &String| tree.link(&format!("sys/class/net/{name}/device")).is_ok();
    let is_down = |name: &String| {
        tree.read(&format!("sys/class/net/{name}/operstate")).is_ok_and(|state| state == "down")
    };
    names.into_iter().filter(has_device).filter(|name| !is_down(name)).collect()
}

/// Creates the finding for a node on which no interface is backed by a device. A container sees only one end of a veth
/// pair; the other end leads to a bridge on the host.
pub(super) fn none() -> FindingDraft {
    FindingDraft::cannot_see(
        "there is no network interface with a device that is up: this is a container's own network, or there is no network",
        "run this check on the host; a container that uses the host's network avoids the bridge",
    )
}

pub(super) fn link_speed(tree: &SystemTree, name: &str) -> DoctorCheckResult {
    let text = tree.read(&format!("sys/class/net/{name}/speed"));
    let speed = text.ok().and_then(|text| text.parse::<i64>().ok()).filter(|speed| *speed > 0);
    let Some(speed) = speed else {
        return Ok(FindingDraft::cannot_see(
            "the interface does not report its speed, as is usual for virtual ones; Richter requires 10 Gbit/s, better 40",
            "measure it between two nodes: fordway machines probe --peer HOST:PORT",
        ));
    };
    let width = tree.read(&format!("sys/class/net/{name}/device/current_link_width"));
    let lanes = width.ok().and_then(|text| text.parse::<u32>().ok()).filter(|lanes| *lanes > 0);
    let gbit = speed as f64 / 1000.0;
    let said = match (speed, lanes) {
        (..SPEED_LEAST, _) => FindingDraft::costs(
            format!(
                "{gbit} Gbit/s: the link slows down large messages and files; Richter requires 10, better 40"
            ),
            "use nodes with a faster network, or fewer and larger nodes",
        ),
        (SPEED_BETTER.., Some(lanes)) if lanes < LANES_LEAST => FindingDraft::costs(
            format!("{gbit} Gbit/s behind {lanes} PCIe lanes: the bus may be slower than the link"),
            "move the card to a slot of 8 lanes or more",
        ),
        _ => FindingDraft::ok(format!("{gbit} Gbit/s")),
    };
    Ok(said.measured("link", gbit, "Gbit/s"))
}

pub(super) fn driver(tree: &SystemTree, name: &str) -> DoctorCheckResult {
    let driver = tree.link(&format!("sys/class/net/{name}/device/driver"))?;
    let is_function = tree.link(&format!("sys/class/net/{name}/device/physfn")).is_ok()
        || tree
            .read(&format!("sys/class/net/{name}/device/device"))
            .is_ok_and(|id| driver == "mlx5_core" && is_mlx5_function(&id));
    let kind = if is_function { Some(NetworkInterfaceKind::VirtualFunction) } else { kind_of(&driver) };
    Ok(match kind {
        Some(NetworkInterfaceKind::Emulated) => FindingDraft::costs(
            format!(
                "{driver}: the hypervisor emulates a network card, and each packet causes exits from the guest"
            ),
            "request at least a virtio interface, better an SR-IOV interface",
        ),
        Some(NetworkInterfaceKind::Paravirtual) => FindingDraft::costs(
            format!(
                "{driver}: each packet passes through software of the host, which costs latency and CPU time (unless \
                 it is vDPA, which is not visible)"
            ),
            "request an SR-IOV interface (OpenStack: vnic_type=direct; clouds: accelerated networking)",
        ),
        Some(NetworkInterfaceKind::VirtualFunction) => FindingDraft::ok(format!(
            "{driver}: a part of a card that only this guest uses (SR-IOV or similar)"
        )),
        Some(NetworkInterfaceKind::Card) => FindingDraft::ok(format!("{driver}: a card's own driver")),
        None => FindingDraft::cannot_see(
            format!("{driver}: an unknown driver"),
            "check whether it drives hardware: ethtool -i",
        ),
    })
}

fn kind_of(driver: &str) -> Option<NetworkInterfaceKind> {
    Some(match driver {
        "e1000" | "8139cp" | "8139too" | "pcnet32" | "ne2k-pci" => NetworkInterfaceKind::Emulated,
        "virtio_net" | "vmxnet3" | "vif" | "xen-netfront" | "xen_netfront" | "hv_netvsc" => {
            NetworkInterfaceKind::Paravirtual
        }
        "iavf" | "i40evf" | "ixgbevf" | "igbvf" | "fm10kvf" | "ena" | "efa" | "gve" | "mana" => {
            NetworkInterfaceKind::VirtualFunction
        }
        "mlx4_core" | "mlx4_en" | "mlx5_core" | "ice" | "i40e" | "ixgbe" | "igb" | "igc" | "e1000e"
        | "bnxt_en" | "bnx2x" | "tg3" | "qede" | "cxgb4" | "sfc" | "be2net" | "ib_ipoib" | "hfi1"
        | "r8169" | "atlantic" | "ionic" => NetworkInterfaceKind::Card,
        _ => return None,
    })
}

/// Checks whether `id` is a PCI device ID that the kernel's `mlx5_core` driver lists as a virtual function.
fn is_mlx5_function(id: &str) -> bool {
    matches!(id, "0x1014" | "0x1016" | "0x1018" | "0x101a" | "0x101c" | "0x101e" | "0xa2d3")
}

/// Checks whether the interface is attached to the NUMA node of a usable processor.
pub(super) fn node(tree: &SystemTree, name: &str) -> DoctorCheckResult {
    let path = format!("sys/class/net/{name}/device/numa_node");
    let text = tree.read(&path)?;
    let node: i64 = text.parse().map_err(|_| UnreadableFile::unknown(&path, &text))?;
    let UsableNumaNodes { all, used } = UsableNumaNodes::of(tree)?;
    Ok(match usize::try_from(node) {
        _ if all.len() == 1 => FindingDraft::ok("there is one NUMA node"),
        Err(_) => FindingDraft::cannot_see(
            "the firmware does not say which NUMA node it is attached to",
            "see lstopo, or the board's manual",
        ),
        Ok(node) if used.contains(&node) => {
            FindingDraft::ok(format!("attached to node {node}, whose processors may be used"))
        }
        Ok(node) => FindingDraft::costs(
            format!(
                "attached to node {node}, and this process may use processors of node {} only: each packet crosses \
                 between the nodes",
                shown(&used)
            ),
            "run ranks that communicate most on the interface's node: srun --cpu-bind=map_ldom, mpirun --map-by dist",
        ),
    })
}

pub(super) fn mtu(tree: &SystemTree, name: &str) -> DoctorCheckResult {
    let path = format!("sys/class/net/{name}/mtu");
    let text = tree.read(&path)?;
    let mtu: u32 = text.parse().map_err(|_| UnreadableFile::unknown(&path, &text))?;
    let said = match mtu {
        ..1500 => FindingDraft::costs(
            format!(
                "frames of {mtu} bytes: a tunnel or overlay uses the rest of 1500 bytes, and costs CPU time for each packet"
            ),
            "use the host's network for MPI, or a larger MTU below the tunnel",
        ),
        1500..4000 => FindingDraft::costs(
            format!(
                "frames of {mtu} bytes: a long message takes {} times as many packets as with 9000",
                9000 / mtu
            ),
            "set the MTU to 9000 if every switch on the way allows it; short messages gain nothing",
        ),
        _ => FindingDraft::ok(format!("frames of {mtu} bytes")),
    };
    Ok(said.measured("mtu", f64::from(mtu), "B"))
}

pub(super) fn queues(tree: &SystemTree, name: &str) -> DoctorCheckResult {
    let directory = format!("sys/class/net/{name}/queues");
    let names = tree.names(&directory)?;
    let receiving: Vec<_> = names.iter().filter(|queue| queue.starts_with("rx-")).collect();
    let cpus = online(tree)?.len();
    let is_steered = receiving.iter().any(|queue| {
        let mask = tree.read(&format!("{directory}/{queue}/rps_cpus"));
        mask.is_ok_and(|mask| mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
    });
    let (count, wanted) = (receiving.len(), cpus.min(QUEUES_ENOUGH));
    Ok(if count >= wanted {
        FindingDraft::ok(format!("{count} receive queues for {cpus} processors"))
    } else if is_steered {
        FindingDraft::ok(format!(
            "{count} receive queues for {cpus} processors, and packets are steered to others (RPS)"
        ))
    } else {
        FindingDraft::costs(
            format!("{count} receive queues for {cpus} processors: few processors receive all packets"),
            format!(
                "ethtool -L {name} combined {wanted}, or more queues from the hypervisor (hw:vif_multiqueue_enabled); \
                 else RPS: write a mask to /{directory}/rx-0/rps_cpus"
            ),
        )
    })
}

/// Checks that TCP's buffers are large enough for 10 Gbit/s at a round-trip time of 1 ms. Most data centres have
/// shorter round-trip times.
pub(super) fn tcp_buffers(tree: &SystemTree) -> DoctorCheckResult {
    let most = |path: &str| {
        let text = tree.read(path)?;
        let last = text.split_whitespace().last().and_then(|field| field.parse::<f64>().ok());
        last.ok_or_else(|| UnreadableFile::unknown(path, &text))
    };
    let (receive, send) = (most("proc/sys/net/ipv4/tcp_rmem")?, most("proc/sys/net/ipv4/tcp_wmem")?);
    let bytes = receive.min(send);
    let gbit = bytes * 8.0 / ROUND_TRIP_S / 1e9;
    let so = format!(
        "TCP's buffers grow to {:.1} MiB, enough for {gbit:.0} Gbit/s at a round trip of 1 ms",
        bytes / 1048576.0
    );
    let scales = tree.read("proc/sys/net/ipv4/tcp_window_scaling").map_or(true, |flag| flag != "0");
    let said = match gbit * 1000.0 < SPEED_LEAST as f64 {
        _ if !scales => FindingDraft::costs(
            "TCP windows do not scale: a connection has at most 64 KiB in flight, 0.5 Gbit/s at a round trip of 1 ms",
            "sysctl net.ipv4.tcp_window_scaling=1",
        ),
        true => FindingDraft::costs(
            so,
            "raise the last numbers of net.ipv4.tcp_rmem and tcp_wmem (sysctl), or better use RDMA",
        ),
        false => FindingDraft::ok(so),
    };
    Ok(said.measured("smaller buffer", bytes, "B"))
}

const INTERRUPTS: &str = "proc/interrupts";
/// The minimum number of interrupts needed to judge their distribution.
const INTERRUPTS_ENOUGH: u64 = 1000;

pub(super) fn interrupts_spread(tree: &SystemTree, name: &str) -> DoctorCheckResult {
    let device = tree.link(&format!("sys/class/net/{name}/device"))?;
    let cpus = online(tree)?.len();
    let counts = counted(&tree.read(INTERRUPTS)?, name, &device);
    let total: u64 = counts.iter().sum();
    if total < INTERRUPTS_ENOUGH || cpus < 2 {
        let so = format!(
            "{total} of its interrupts on {cpus} processors so far: too few to judge their distribution"
        );
        return Ok(FindingDraft::cannot_see(so, "look again under load"));
    }
    let most = counts.iter().max().copied().unwrap_or(0);
    let share = 100.0 * most as f64 / total as f64;
    // With an even distribution, each processor handles 50 % of the interrupts if there are two processors, and less if
    // there are more. A share above 90 % therefore means that one processor handles nearly all interrupts.
    let said = match share > 90.0 {
        true => FindingDraft::costs(
            format!(
                "one processor takes {share:.0} % of its interrupts, which delay the rank that runs there"
            ),
            "run irqbalance or set /proc/irq/*/smp_affinity_list, and leave that processor to the system",
        ),
        false => FindingDraft::ok(format!(
            "its interrupts are distributed: the busiest processor takes {share:.0} %"
        )),
    };
    Ok(said.measured("busiest processor's share", share, "%"))
}

/// Returns the number of the interface's interrupts on each processor: the sums over all lines that name the interface
/// or its device.
fn counted(text: &str, name: &str, device: &str) -> Vec<u64> {
    let mut lines = text.lines();
    let cpus = lines.next().map_or(0, |line| line.split_whitespace().count());
    let mut sums = vec![0; cpus];
    for line in lines {
        let fields: Vec<_> = line.split_whitespace().skip(1).collect();
        let names = fields.get(cpus..).unwrap_or_default();
        if names.iter().any(|field| is_of(field, name) || is_of(field, device)) {
            for (sum, count) in sums.iter_mut().zip(&fields) {
                *sum += count.parse().unwrap_or(0);
            }
        }
    }
    sums
}

/// Checks whether `field` names the device `name`. For example, `eth0-TxRx-3` names `eth0`, and
/// `mlx5_comp7@pci:0000:3b:00.0` names `0000:3b:00.0`, but `eth01-rx` does not name `eth0`.
fn is_of(field: &str, name: &str) -> bool {
    field.match_indices(name).any(|(at, _)| {
        let before = field[..at].chars().next_back();
        let after = field[at + name.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
}

const DEVICES: &str = "sys/class/infiniband";
/// Drivers that implement RDMA in software on an ordinary interface.
const SOFTWARE: [&str; 2] = ["rdma_rxe", "siw"];
/// The bit of a partition key that marks a full member. Limited members cannot communicate with each other.
const FULL_MEMBER: u16 = 0x8000;

pub(super) fn rdma_devices(tree: &SystemTree) -> Vec<String> {
    tree.names(DEVICES).unwrap_or_default()
}

pub(super) fn no_rdma_device() -> FindingDraft {
    FindingDraft::cannot_see(
        "no RDMA device is visible here: if there is none, messages between nodes use TCP/IP, and each costs work in \
         the kernel",
        "request nodes with InfiniBand, RoCE or EFA, and in a container also the devices (a device plug-in)",
    )
}

pub(super) fn no_partition() -> FindingDraft {
    FindingDraft::cannot_see("no InfiniBand port is visible here, and so no partitions", "see rdma")
}

/// Returns the number of the device's first active port, or of its first port if none is active. Usually, only one port
/// of a card has a cable.
fn used_port(tree: &SystemTree, device: &str) -> u32 {
    let names = tree.names(&format!("{DEVICES}/{device}/ports")).unwrap_or_default();
    let mut ports: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    ports.sort_unstable();
    let is_active = |port: &u32| {
        tree.read(&format!("{DEVICES}/{device}/ports/{port}/state")).is_ok_and(|state| is_active(&state))
    };
    ports.iter().copied().find(is_active).or(ports.first().copied()).unwrap_or(1)
}

fn is_active(state: &str) -> bool {
    state.contains("ACTIVE")
}

pub(super) fn rdma_port(tree: &SystemTree, device: &str) -> DoctorCheckResult {
    let number = used_port(tree, device);
    let port = format!("{DEVICES}/{device}/ports/{number}");
    let state = tree.read(&format!("{port}/state"))?;
    let rate = tree.read(&format!("{port}/rate"))?;
    let layer = tree.read(&format!("{port}/link_layer")).unwrap_or_default();
    let driver = tree.link(&format!("{DEVICES}/{device}/device/driver"));
    // Software RDMA devices have no parent device on a bus, so they may lack a driver link.
    let is_software = driver.as_ref().is_ok_and(|driver| SOFTWARE.contains(&driver.as_str()))
        || SOFTWARE.iter().any(|_| device.starts_with("rxe") || device.starts_with("siw"));
    let gbit = rate.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    let said = match (is_active(&state), is_software) {
        (false, _) => FindingDraft::costs(
            format!("port {number} is {state:?}, and no other port is active: the device carries no traffic"),
            "check the cable, and that a subnet manager runs (sminfo)",
        ),
        (true, true) => FindingDraft::costs(
            format!(
                "{layer}: RDMA in software, over an ordinary interface: the kernel still processes each message"
            ),
            "use it for tests only",
        ),
        (true, false) if !can_be_opened(tree) => FindingDraft::costs(
            format!("{layer}, {rate}, but there is no /dev/infiniband/uverbs*: MPI falls back to TCP"),
            "load ib_uverbs; in a container, pass /dev/infiniband through (an RDMA device plug-in) and raise memlock",
        ),
        (true, false) => FindingDraft::ok(format!("{layer}, {rate}")),
    };
    Ok(match gbit {
        Some(gbit) => said.measured("port", gbit, "Gbit/s"),
        None => said,
    })
}

fn can_be_opened(tree: &SystemTree) -> bool {
    (0..16).any(|number| tree.has(&format!("dev/infiniband/uverbs{number}")))
}

/// Checks the partitions to which the subnet manager assigned the port. According to Richter, OpenStack's Neutron does
/// not support partitions.
pub(super) fn rdma_partition(tree: &SystemTree, device: &str) -> DoctorCheckResult {
    let port = format!("{DEVICES}/{device}/ports/{}", used_port(tree, device));
    let layer = tree.read(&format!("{port}/link_layer"))?;
    if layer != "InfiniBand" {
        return Ok(FindingDraft::ok(format!("{layer}: partitions are InfiniBand's")));
    }
    let directory = format!("{port}/pkeys");
    let key = |name: &String| {
        let text = tree.read(&format!("{directory}/{name}")).ok()?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16).ok().filter(|key| *key != 0)
    };
    let keys: Vec<u16> = tree.names(&directory)?.iter().filter_map(key).collect();
    let texts = keys.iter().map(|key| format!("{key:#06x}")).collect::<Vec<_>>().join(", ");
    match keys.iter().any(|key| key & FULL_MEMBER != 0) {
        _ if keys.is_empty() => Err(UnreadableFile::unknown(&directory, "no key")),
        true => Ok(FindingDraft::ok(format!("member of {texts}"))),
        false => Ok(FindingDraft::costs(
            format!("a limited member of {texts} only: it cannot talk to other limited members"),
            "have the subnet manager make it a full member of the job's partition",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_device_are_told_by_its_name() {
        let text = "       CPU0   CPU1\n 38:  5  7  PCI-MSIX 1-edge  virtio2-input.0\n 39:  1  0  PCI-MSIX 2-edge \
                    virtio21-input.0\n 40: 2 2 PCI-MSI 3-edge mlx5_comp0@pci:0000:3b:00.0\nLOC: 9 9 Local timer";
        assert_eq!(counted(text, "eth0", "virtio2"), [5, 7]);
        assert_eq!(counted(text, "ib0", "0000:3b:00.0"), [2, 2]);
        assert_eq!(counted(text, "eth0", "none"), [0, 0]);
    }
}
