//! Ways past TCP/IP: InfiniBand, RoCE, EFA and the like.

use super::Answer;
use crate::doctor::finding::Said;
use crate::doctor::tree::{Tree, Unseen};

const DEVICES: &str = "sys/class/infiniband";
/// Drivers that are software on an ordinary interface.
const SOFTWARE: [&str; 2] = ["rdma_rxe", "siw"];
/// The bit of a partition key that says full member; limited ones cannot talk to each other.
const FULL_MEMBER: u16 = 0x8000;

pub(super) fn devices(tree: &Tree) -> Vec<String> {
    tree.names(DEVICES).unwrap_or_default()
}

pub(super) fn no_device() -> Said {
    Said::cannot_see(
        "no RDMA device is seen here: if there is none, messages between nodes go by TCP/IP, with the kernel's \
         work for each",
        "ask for nodes with InfiniBand, RoCE or EFA, and in a container for the devices (a device plug-in)",
    )
}

pub(super) fn no_partition() -> Said {
    Said::cannot_see("no InfiniBand port is seen here, so its partitions are not either", "see rdma")
}

pub(super) fn port(tree: &Tree, device: &str) -> Answer {
    let state = tree.read(&format!("{DEVICES}/{device}/ports/1/state"))?;
    let rate = tree.read(&format!("{DEVICES}/{device}/ports/1/rate"))?;
    let layer = tree.read(&format!("{DEVICES}/{device}/ports/1/link_layer")).unwrap_or_default();
    let driver = tree.link(&format!("{DEVICES}/{device}/device/driver"));
    // The software ones hang on no device of the bus.
    let is_software = driver.as_ref().is_ok_and(|driver| SOFTWARE.contains(&driver.as_str()))
        || SOFTWARE.iter().any(|_| device.starts_with("rxe") || device.starts_with("siw"));
    let gbit = rate.split(' ').next().and_then(|number| number.parse::<f64>().ok());
    let said = match (state.contains("ACTIVE"), is_software) {
        (false, _) => Said::costs(
            format!("port 1 is {state:?}: nothing goes over it"),
            "check the cable, and that a subnet manager runs (sminfo)",
        ),
        (true, true) => Said::costs(
            format!("{layer}: RDMA in software, over an ordinary interface: the kernel's work stays"),
            "use it for tests only",
        ),
        (true, false) if !can_be_opened(tree) => Said::costs(
            format!("{layer}, {rate}, but there is no /dev/infiniband/uverbs*: MPI falls back to TCP"),
            "load ib_uverbs; in a container, hand over /dev/infiniband (an RDMA device plug-in) and raise memlock",
        ),
        (true, false) => Said::ok(format!("{layer}, {rate}")),
    };
    Ok(match gbit {
        Some(gbit) => said.measured("port", gbit, "Gbit/s"),
        None => said,
    })
}

fn can_be_opened(tree: &Tree) -> bool {
    (0..16).any(|number| tree.has(&format!("dev/infiniband/uverbs{number}")))
}

/// The partitions that the subnet manager has put the port in: what Richter misses in Neutron.
pub(super) fn partition(tree: &Tree, device: &str) -> Answer {
    let layer = tree.read(&format!("{DEVICES}/{device}/ports/1/link_layer"))?;
    if layer != "InfiniBand" {
        return Ok(Said::ok(format!("{layer}: partitions are InfiniBand's")));
    }
    let directory = format!("{DEVICES}/{device}/ports/1/pkeys");
    let key = |name: &String| {
        let text = tree.read(&format!("{directory}/{name}")).ok()?;
        u16::from_str_radix(text.trim_start_matches("0x"), 16).ok().filter(|key| *key != 0)
    };
    let keys: Vec<u16> = tree.names(&directory)?.iter().filter_map(key).collect();
    let texts = keys.iter().map(|key| format!("{key:#06x}")).collect::<Vec<_>>().join(", ");
    match keys.iter().any(|key| key & FULL_MEMBER != 0) {
        _ if keys.is_empty() => Err(Unseen::unknown(&directory, "no key")),
        true => Ok(Said::ok(format!("member of {texts}"))),
        false => Ok(Said::costs(
            format!("a limited member of {texts} only: it cannot talk to other limited members"),
            "have the subnet manager make it a full member of the job's partition",
        )),
    }
}
