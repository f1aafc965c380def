//! Faults at every file-system call: the store dies, the call fails, or storage is late. What is found afterwards is right.

mod crash;
mod durability;
mod errors;
mod uploads;
mod way;
