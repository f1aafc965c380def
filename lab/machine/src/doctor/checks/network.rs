//! How this node reaches others by its network interfaces.

use super::Answer;
use crate::doctor::finding::Said;
use crate::doctor::tree::{Tree, Unseen, listed};

/// Richter's least speed, and his better one, in Mbit/s.
const SPEED_LEAST: i64 = 10_000;
const SPEED_BETTER: i64 = 40_000;
/// What he asks of the bus.
const LANES_LEAST: u32 = 8;
/// More queues than this rarely help one process.
const QUEUES_ENOUGH: usize = 16;
/// The round trip within one hall that buffers are checked against.
const ROUND_TRIP_S: f64 = 1e-3;

/// How packets leave a machine, by the driver of its interface.
enum Way {
    /// A device that the host emulates.
    Emulated,
    /// A queue that the host's software serves.
    Paravirtual,
    /// A part of a card that belongs to this guest.
    Function,
    /// A card, or a part of one: the driver is the same.
    Card,
}

/// Interfaces with a device behind them; not loopback, bridges and the like.
pub(super) fn interfaces(tree: &Tree) -> Vec<String> {
    let names = tree.names("sys/class/net").unwrap_or_default();
    let has_device = |name: &String| tree.link(&format!("sys/class/net/{name}/device")).is_ok();
    names.into_iter().filter(has_device).collect()
}

/// A container sees one end of a pair, whose other end leads to a bridge of the host.
pub(super) fn none() -> Said {
    Said::cannot_see(
        "there is no network interface with a device behind it: this is a container's own network, or none",
        "ask on the host; a container that uses the host's network saves the bridge between",
    )
}

pub(super) fn link_speed(tree: &Tree, name: &str) -> Answer {
    let text = tree.read(&format!("sys/class/net/{name}/speed"));
    let speed = text.ok().and_then(|text| text.parse::<i64>().ok()).filter(|speed| *speed > 0);
    let Some(speed) = speed else {
        return Ok(Said::cannot_see(
            "the interface does not tell its speed, as virtual ones do not; Richter asks for 10 Gbit/s, better 40",
            "measure it between two nodes: fordway machines probe --peer HOST:PORT",
        ));
    };
    let width = tree.read(&format!("sys/class/net/{name}/device/current_link_width"));
    let lanes = width.ok().and_then(|text| text.parse::<u32>().ok()).filter(|lanes| *lanes > 0);
    let gbit = speed as f64 / 1000.0;
    let said = match (speed, lanes) {
        (..SPEED_LEAST, _) => Said::costs(
            format!(
                "{gbit} Gbit/s: large messages and files wait for the line; Richter asks for 10, better 40"
            ),
            "use nodes with a faster network, or fewer and larger nodes",
        ),
        (SPEED_BETTER.., Some(lanes)) if lanes < LANES_LEAST => Said::costs(
            format!("{gbit} Gbit/s behind {lanes} PCIe lanes: the bus may be slower than the line"),
            "move the card to a slot of 8 lanes or more",
        ),
        _ => Said::ok(format!("{gbit} Gbit/s")),
    };
    Ok(said.measured("link", gbit, "Gbit/s"))
}

pub(super) fn driver(tree: &Tree, name: &str) -> Answer {
    let driver = tree.link(&format!("sys/class/net/{name}/device/driver"))?;
    let is_function = tree.link(&format!("sys/class/net/{name}/device/physfn")).is_ok()
        || tree
            .read(&format!("sys/class/net/{name}/device/device"))
            .is_ok_and(|id| driver == "mlx5_core" && is_mlx5_function(&id));
    let way = if is_function { Some(Way::Function) } else { way_of(&driver) };
    Ok(match way {
        Some(Way::Emulated) => Said::costs(
            format!(
                "{driver}: the hypervisor emulates a network card, and each packet leaves the guest for it"
            ),
            "ask for a virtio interface at least, better for an SR-IOV one",
        ),
        Some(Way::Paravirtual) => Said::costs(
            format!(
                "{driver}: packets pass through software of the host (unless it is vDPA, which cannot be seen): \
                 latency and CPU time for each"
            ),
            "ask for an SR-IOV interface (OpenStack: vnic_type=direct; clouds: accelerated networking)",
        ),
        Some(Way::Function) => {
            Said::ok(format!("{driver}: a part of a card that is this guest's own (SR-IOV or like it)"))
        }
        Some(Way::Card) => Said::ok(format!("{driver}: a card's own driver")),
        None => Said::cannot_see(
            format!("{driver}: a driver that is not on our list"),
            "see whether it drives hardware: ethtool -i",
        ),
    })
}

fn way_of(driver: &str) -> Option<Way> {
    Some(match driver {
        "e1000" | "8139cp" | "8139too" | "pcnet32" | "ne2k-pci" => Way::Emulated,
        "virtio_net" | "vmxnet3" | "vif" | "xen-netfront" | "xen_netfront" | "hv_netvsc" => Way::Paravirtual,
        "iavf" | "i40evf" | "ixgbevf" | "igbvf" | "fm10kvf" | "ena" | "efa" | "gve" | "mana" => Way::Function,
        "mlx4_core" | "mlx4_en" | "mlx5_core" | "ice" | "i40e" | "ixgbe" | "igb" | "igc" | "e1000e"
        | "bnxt_en" | "bnx2x" | "tg3" | "qede" | "cxgb4" | "sfc" | "be2net" | "ib_ipoib" | "hfi1"
        | "r8169" | "atlantic" | "ionic" => Way::Card,
        _ => return None,
    })
}

/// The PCI numbers that the kernel's `mlx5_core` has down as virtual functions.
fn is_mlx5_function(id: &str) -> bool {
    matches!(id, "0x1014" | "0x1016" | "0x1018" | "0x101a" | "0x101c" | "0x101e" | "0xa2d3")
}

pub(super) fn mtu(tree: &Tree, name: &str) -> Answer {
    let path = format!("sys/class/net/{name}/mtu");
    let text = tree.read(&path)?;
    let mtu: u32 = text.parse().map_err(|_| Unseen::unknown(&path, &text))?;
    let said = match mtu {
        ..1500 => Said::costs(
            format!(
                "frames of {mtu} bytes: a tunnel or overlay takes the rest of 1500, and its work for each packet"
            ),
            "use the host's network for MPI, or a larger MTU beneath the tunnel",
        ),
        1500..4000 => Said::costs(
            format!(
                "frames of {mtu} bytes: a long message takes {} times the packets of one with 9000",
                9000 / mtu
            ),
            "set the MTU to 9000 where every switch between allows it; short messages gain nothing",
        ),
        _ => Said::ok(format!("frames of {mtu} bytes")),
    };
    Ok(said.measured("mtu", f64::from(mtu), "B"))
}

pub(super) fn queues(tree: &Tree, name: &str) -> Answer {
    let directory = format!("sys/class/net/{name}/queues");
    let names = tree.names(&directory)?;
    let receiving: Vec<_> = names.iter().filter(|queue| queue.starts_with("rx-")).collect();
    let cpus = listed(&tree.read("sys/devices/system/cpu/online")?).len();
    let is_steered = receiving.iter().any(|queue| {
        let mask = tree.read(&format!("{directory}/{queue}/rps_cpus"));
        mask.is_ok_and(|mask| mask.chars().any(|c| c.is_ascii_hexdigit() && c != '0'))
    });
    let (count, wanted) = (receiving.len(), cpus.min(QUEUES_ENOUGH));
    Ok(if count >= wanted {
        Said::ok(format!("{count} receive queues for {cpus} processors"))
    } else if is_steered {
        Said::ok(format!(
            "{count} receive queues for {cpus} processors, and packets are steered to others (RPS)"
        ))
    } else {
        Said::costs(
            format!("{count} receive queues for {cpus} processors: so few of them take in all packets"),
            format!(
                "ethtool -L {name} combined {wanted}, or more queues from the hypervisor (hw:vif_multiqueue_enabled); \
                 else RPS: write a mask to /{directory}/rx-0/rps_cpus"
            ),
        )
    })
}

/// Held against a round trip of 1 ms on 10 Gbit/s, which most halls stay below.
pub(super) fn tcp_buffers(tree: &Tree) -> Answer {
    let most = |path: &str| {
        let text = tree.read(path)?;
        let last = text.split_whitespace().last().and_then(|field| field.parse::<f64>().ok());
        last.ok_or_else(|| Unseen::unknown(path, &text))
    };
    let (receive, send) = (most("proc/sys/net/ipv4/tcp_rmem")?, most("proc/sys/net/ipv4/tcp_wmem")?);
    let bytes = receive.min(send);
    let gbit = bytes * 8.0 / ROUND_TRIP_S / 1e9;
    let so = format!(
        "TCP's buffers grow to {:.1} MiB, enough for {gbit:.0} Gbit/s at a round trip of 1 ms",
        bytes / 1048576.0
    );
    let said = match gbit * 1000.0 < SPEED_LEAST as f64 {
        true => Said::costs(
            so,
            "raise the last numbers of net.ipv4.tcp_rmem and tcp_wmem (sysctl), best with RDMA instead",
        ),
        false => Said::ok(so),
    };
    Ok(said.measured("smaller buffer", bytes, "B"))
}
