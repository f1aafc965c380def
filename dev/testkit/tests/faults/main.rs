//! Faults at every file-system call: the process is killed, the call fails, or storage lags behind. The state found
//! afterwards must be correct.

mod buckets;
mod calls;
mod crash;
mod durability;
mod errors;
mod migrate;
mod missing;
mod uploads;
mod way;
