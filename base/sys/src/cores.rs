//! On which processor a thread runs.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The number of the processor that the calling thread runs on. Cost: no system call.
pub fn current_core() -> u32 {
    sched_getcpu() as u32
}

/// The numbers of the processors that the calling thread may use; none where the system does not tell.
pub fn usable_cores() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect()
}

/// The processors of the calling thread, where it can keep to one of them for a while. To be used by the
/// thread that made it.
#[derive(Debug)]
pub struct Cores {
    /// What it may use; `None` where the system does not tell.
    all: Option<CpuSet>,
    kept_to: Option<u32>,
}

impl Cores {
    /// Those that the calling thread may use.
    pub fn of_this_thread() -> Self {
        Cores { all: sched_getaffinity(None).ok(), kept_to: None }
    }

    /// Keeps to `core`, if this thread may use it. Cost: one system call if that is another one than before.
    pub fn keep_to(&mut self, core: u32) {
        let index = core as usize;
        let may_use = self.all.is_some_and(|all| index < CpuSet::MAX_CPU && all.is_set(index));
        if self.kept_to == Some(core) || !may_use {
            return;
        }
        let mut only = CpuSet::new();
        only.set(index);
        // Where it is not permitted, the thread runs where it did.
        self.kept_to = sched_setaffinity(None, &only).ok().map(|()| core);
    }

    /// Uses all of them again. Cost: one system call if it did not.
    pub fn use_all(&mut self) {
        if let (Some(_), Some(all)) = (self.kept_to, &self.all) {
            let _ = sched_setaffinity(None, all);
            self.kept_to = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_to_a_core_for_as_long_as_it_says() {
        let mut cores = Cores::of_this_thread();
        let before = sched_getaffinity(None).unwrap();
        let core = current_core();
        assert!(usable_cores().contains(&(core as usize)) && usable_cores().len() as u32 == before.count());
        cores.keep_to(core);
        let kept = sched_getaffinity(None).unwrap();
        assert!(kept.count() == 1 && kept.is_set(core as usize));
        assert_eq!(current_core(), core);
        cores.keep_to(u32::MAX);
        assert_eq!(sched_getaffinity(None).unwrap(), kept, "there is no such core");
        cores.use_all();
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
