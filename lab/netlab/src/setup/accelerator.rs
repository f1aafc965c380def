//! What runs the processor of a virtual machine: this machine's own one (`kvm`), or a program that emulates it (`tcg`).

use std::fs::OpenOptions;

/// The word of a set-up that says it.
pub(super) const WORD: &str = "accelerator";
/// What stands for the best one that this machine has.
const AUTO: &str = "auto";
const KVM: &str = "kvm";
const TCG: &str = "tcg";

/// `said`, or what `auto` comes to on this machine.
pub(super) fn resolved(said: &str) -> &str {
    match said {
        AUTO if is_virtualizing() => KVM,
        AUTO => TCG,
        said => said,
    }
}

/// Whether times within differ from a processor of this kind.
pub(super) fn emulates(accelerator: &str) -> bool {
    accelerator != KVM
}

/// Whether KVM may be used, and the processor has what it needs to run any kernel. There are KVMs in virtual machines
/// whose processors have not (`kvm_pvm`): they can be opened, and take only kernels that are made for them.
fn is_virtualizing() -> bool {
    let may = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    may && std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|told| has_virtualization(&told))
}

fn has_virtualization(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processors_that_say_so_virtualize() {
        for (cpuinfo, expected) in [
            ("processor\t: 0\nflags\t\t: fpu vmx sse\nbugs\t\t: x\n", true),
            ("flags\t\t: fpu svm\n", true),
            ("model name\t: vmx svm\nflags\t\t: fpu svm_lock hypervisor\n", false),
            ("", false),
        ] {
            assert_eq!(has_virtualization(cpuinfo), expected, "{cpuinfo:?}");
        }
    }

    #[test]
    fn what_is_said_is_taken_and_all_but_kvm_emulates() {
        for said in [KVM, TCG] {
            assert_eq!(resolved(said), said);
        }
        assert!([KVM, TCG].contains(&resolved(AUTO)));
        assert!(emulates(TCG) && !emulates(KVM));
    }
}
