//! The operating system, as Fordway needs it. Every `unsafe` of the project outside the language
//! bindings is here, and every call says what happens on a kernel or file system that lacks it.
//!
//! | wanted | since | without it |
//! |---|---|---|
//! | `openat2` with `RESOLVE_BENEATH` | Linux 5.6 | the path is walked name by name with the same containment |
//! | `openat2` with `RESOLVE_CACHED` | 5.12; not on every network file system | the caller waits for names |
//! | `O_TMPFILE` | 3.11; not on FUSE, NFS | the caller stages under a hidden name |
//! | `linkat` with `AT_EMPTY_PATH` for one's own files | 6.10, or root | linked through `/proc/self/fd` |
//! | `getxattrat` | 6.13 | read through `/proc/self/fd` |
//! | user extended attributes | not on every file system | the caller is told `NOTSUP` |
//! | hardware counters (`perf_event_open`) | a PMU, and `perf_event_paranoid` below 3 | the caller is told which are missing |
//! | `preadv2` with `RWF_NOWAIT` | 4.14; not on tmpfs, FUSE, NFS | tmpfs: read at once; elsewhere the caller is told to wait on another thread |
//! | the groups of a socket's other end (`SO_PEERGROUPS`) | 4.13 | the caller is told `NOPROTOOPT` |
//! | network and mount namespaces, TUN devices | root, or a user namespace; `/dev/net/tun` | the caller is told `PERM` or `NOENT` |
//! | OFD locks between nodes | depends on the mount | the caller documents it |

mod accounts;
mod cached;
mod call;
mod clock;
mod cores;
mod counters;
mod dir;
#[cfg(feature = "faults")]
pub mod fault;
mod file;
mod forks;
mod heap;
mod helper;
mod huge;
mod identity;
mod lock;
mod map;
mod mounts;
mod name;
mod netns;
mod nowait;
mod perf;
mod process;
mod reference;
mod root;
mod send;
mod shared;
mod socket;
mod tcp;
mod tun;
mod xattr;

pub use accounts::peer_of_user;
pub use cached::{drop_cached, is_cached, read_cached};
pub use clock::Tick;
pub use cores::{Cores, current_core, usable_cores};
pub use counters::{ProcessUsage, descendants, pin_process, pin_thread, precise_timers, usage_of};
pub use dir::{DirEntry, EntryKind, kind_in, read_dir};
pub use file::{
    FileStat, copy_range, create_unnamed, created_ns, free_bytes, link, link_unnamed, links_in, make_dir,
    open_in, read_into_spare, remove_dir, remove_file, rename, set_group, set_mode, set_modified, set_owner,
    stat, stat_in, sync_data, write_all_at,
};
pub use forks::Process;
pub use heap::{give_back_heap, unused_heap_bytes};
pub use helper::{Helper, act_for};
pub use huge::in_huge_pages;
pub use identity::{Role, act_as, file_user, group_id, is_in_group, may_act_as_others, user_id};
pub use lock::{ByteLocks, LockGuard, lock_file, with_lock_patience};
pub use map::Mapping;
pub use mounts::{enter_mount_namespace, new_mount_namespace};
pub use name::{is_text_of_a_name, name_to_text, text_to_name};
pub use netns::{end_with_thread, enter_network_namespace, new_network_namespace, own_process_namespace};
pub use nowait::{is_to_be_done_again, without_waiting, would_wait};
pub use perf::{HardwareCounters, HardwareCounts};
pub use process::{Usage, process_cpu_ns, process_usage, raise_open_files, terminate, thread_cpu_ns};
pub use reference::reference_cycles;
pub use root::{Links, Resolution, Root};
pub use rustix::fs::{Mode, OFlags};
pub use rustix::io::Errno;
pub use send::{is_writable, send_file, send_more};
pub use shared::{Sharing, inode_in, locks_of_one_node, look_again, stat_now};
pub use socket::{Peer, Wait, keep_alive, peer_of, receive, receive_with_descriptor, send_all};
pub use tcp::{TcpInfo, offer_room, send_unpaced_on_loopback, set_receive_low_water, tcp_info};
pub use tun::{PacketHeader, TUN_READ_BYTES_MAX, Tun};
pub use xattr::{get_xattr, get_xattr_in, remove_xattr, set_xattr};
