//! What a machine is described by.

use serde::{Serialize, Serializer};

macro_rules! features {
    ($($feature:ident = $name:literal, $unit:literal, $meaning:literal;)*) => {
        /// A number above 0 that says how much a machine does, or how long it takes. Its name ends in its unit;
        /// MB are 10^6 bytes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Feature { $(#[doc = $meaning] $feature,)* }

        impl Feature {
            /// All features, in the order in which they are shown.
            pub const ALL: &'static [Feature] = &[$(Feature::$feature),*];

            /// Its name in catalogues.
            pub const fn name(self) -> &'static str {
                match self { $(Feature::$feature => $name),* }
            }

            /// Its unit as people write it; empty for a count.
            pub const fn unit(self) -> &'static str {
                match self { $(Feature::$feature => $unit),* }
            }

            /// What it is.
            pub const fn meaning(self) -> &'static str {
                match self { $(Feature::$feature => $meaning),* }
            }
        }
    };
}

features! {
    Threads = "threads", "", "threads that run at once";
    CpuTime = "cpu_time_s", "s", "CPU time of a picture that tachyon makes on one thread";
    Memory = "memory_mb", "MB", "memory";
    MemoryTriad = "memory_triad_mb_per_s", "MB/s", "memory bandwidth, STREAM's triad on all threads";
    DiskRead = "disk_read_mb_per_s", "MB/s", "reading a file from the disk, fio";
    DiskWrite = "disk_write_mb_per_s", "MB/s", "writing a file to the disk, fio";
    Network = "network_mb_per_s", "MB/s", "one connection to another machine, iperf3";
    Loopback = "loopback_mb_per_s", "MB/s", "one connection to the machine itself, iperf3";
    NodeGet = "node_get_ops_per_s", "ops/s", "GETs of 4 KiB by one thread over the node lane";
    HttpGet = "http_get_ops_per_s", "ops/s", "GETs of 4 KiB by one thread over loopback HTTP";
}

impl Feature {
    /// The feature of that name in catalogues.
    pub fn from_name(name: &str) -> Option<Feature> {
        Self::ALL.iter().copied().find(|feature| feature.name() == name)
    }

    /// All names, for messages.
    pub fn names() -> String {
        Self::ALL.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(", ")
    }
}

impl Serialize for Feature {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
