//! Injects faults at every file-system call: the process is killed, the call fails, or data is not yet on stable
//! storage. The resulting state must be correct.

mod area;
mod buckets;
mod calls;
mod crash;
mod durability;
mod errors;
mod interleaved;
mod migrate;
mod missing;
mod nodes;
mod reads;
mod uploads;
mod way;
