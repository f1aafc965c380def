//! Faults at every file-system call: the process is killed, the call fails, or storage is late. The state found
//! afterwards is correct.

mod calls;
mod crash;
mod durability;
mod errors;
mod uploads;
mod way;
