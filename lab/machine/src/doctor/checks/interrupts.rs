//! Which processors take the interrupts of an interface.

use super::Answer;
use crate::doctor::finding::Said;
use crate::doctor::tree::{Tree, listed};

const PATH: &str = "proc/interrupts";
/// Fewer interrupts than this say nothing about where they go.
const ENOUGH: u64 = 1000;

pub(super) fn spread(tree: &Tree, name: &str) -> Answer {
    let device = tree.link(&format!("sys/class/net/{name}/device"))?;
    let cpus = listed(&tree.read("sys/devices/system/cpu/online")?).len();
    let counts = counted(&tree.read(PATH)?, name, &device);
    let total: u64 = counts.iter().sum();
    if total < ENOUGH || cpus < 2 {
        let so =
            format!("{total} interrupts of it on {cpus} processors so far: too few to see where they go");
        return Ok(Said::cannot_see(so, "look again under load"));
    }
    let most = counts.iter().max().copied().unwrap_or(0);
    let share = 100.0 * most as f64 / total as f64;
    // Two processors share evenly at 50 %, many at less: what one takes beyond its part counts.
    let said = match share > 90.0 {
        true => Said::costs(
            format!(
                "one processor takes {share:.0} % of its interrupts, and whoever computes there is interrupted"
            ),
            "run irqbalance or set /proc/irq/*/smp_affinity_list, and leave that processor to the system",
        ),
        false => Said::ok(format!("its interrupts are spread: the busiest processor takes {share:.0} %")),
    };
    Ok(said.measured("busiest processor's share", share, "%"))
}

/// Interrupts of the interface for each processor: those whose line ends in its name, or its device's.
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

/// `virtio2-input.0`, `eth0-TxRx-3` and `mlx5_comp7@pci:0000:3b:00.0` name their device; `eth01-rx` is
/// not eth0's.
fn is_of(field: &str, name: &str) -> bool {
    field.match_indices(name).any(|(at, _)| {
        let before = field[..at].chars().next_back();
        let after = field[at + name.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric) && !after.is_some_and(char::is_alphanumeric)
    })
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
