//! The operating system functions that Fordway needs. All `unsafe` code of the project outside the language bindings is
//! in this crate. Each function documents what happens on a kernel or file system that lacks a feature that the
//! function uses:
//!
//! | wanted | since | without it |
//! |---|---|---|
//! | `openat2` with `RESOLVE_BENEATH` | Linux 5.6 | the path is walked name by name with the same containment |
//! | `openat2` with `RESOLVE_CACHED` | 5.12; not on every network file system | the caller waits for lookups |
//! | `O_TMPFILE` | 3.11; not on FUSE, NFS | the caller stages under a hidden name |
//! | `linkat` with `AT_EMPTY_PATH` for files opened by the process | 6.10, or root | linked through `/proc/self/fd` |
//! | `getxattrat` | 6.13 | the attribute is read through `/proc/self/fd` |
//! | user extended attributes | not on every file system | the call fails with `NOTSUP` |
//! | hardware counters (`perf_event_open`) | a PMU, and `perf_event_paranoid` below 3 | missing counts are `None` |
//! | `preadv2` with `RWF_NOWAIT` | 4.14; not on tmpfs, FUSE, NFS | tmpfs: `pread`; else `AGAIN`: use another thread |
//! | the groups of a socket's peer (`SO_PEERGROUPS`) | 4.13 | the call fails with `NOPROTOOPT` |
//! | network and mount namespaces, TUN devices | root, or a user namespace; `/dev/net/tun` | `PERM` or `NOENT` |
//! | changes of directories (inotify) | 2.6.13; needs `/proc` | the call fails; directories are read again |
//! | OFD locks between nodes | depends on the mount | where known, [`MountProblem`] names the option to change |

mod allocator;
mod call;
mod counters;
mod coverage;
mod dir;
#[cfg(feature = "faults")]
pub mod fault;
mod file;
mod identity;
mod lock;
mod memory;
mod mounts;
mod namespace;
mod nowait;
mod passed;
mod process;
mod root;
mod shared;
mod signal;
mod socket;
mod streams;
mod verdict;
mod watch;

pub use allocator::HalfPageAllocator;
pub use counters::{
    CoarseInstant, HardwareCounters, HardwareEventCounts, ProcessResourceUsage, descendants, pin_process,
    pin_thread, precise_timers, reference_cycles, usage_of,
};
pub use coverage::{clear_coverage_counters, coverage_counters};
pub use dir::{
    DirEntry, EntryKind, is_text_of_a_name, kind_in, name_to_text, read_dir, read_dir_briefly,
    read_dir_in_steps, read_dir_start, rewind, text_to_name,
};
pub use file::{
    FileStat, close_errors, copy_range, create_unnamed, created_ns, free_bytes, free_bytes_before, get_xattr,
    get_xattr_in, is_immutable, is_read_only, link, link_unnamed, links_in, make_dir,
    make_dir_regardless_of_umask, next_data, open_in, read_into_spare, read_uninit, recorded_creation_ns,
    remove_dir, remove_file, remove_xattr, rename, rename_new, set_group, set_immutable, set_mode,
    set_modified, set_owner, set_size, set_xattr, stat, stat_in, sync_all, sync_data, write_all_at,
};
pub use identity::{
    ImpersonatedUser, PrivilegedThread, act_as, act_for, file_group, file_user, group_id, is_in_group,
    is_own_file, is_same_user, may_act_as_others, may_set_immutable, peer_of_user, user_id, user_name,
    user_named,
};
pub use lock::{
    ApartByteLockGuard, ByteLockGuard, ByteRangeGuard, ByteRangeLocks, LockOrderKey, await_unlocked,
    lock_file, lock_range, unlock_file, with_lock_patience,
};
pub use memory::{FileMapping, cached_bytes, give_back_heap, in_huge_pages, unused_heap_bytes};
pub use mounts::{MountProblem, MountProperties, remote_mounts_in};
pub use namespace::{
    TUN_READ_BYTES_MAX, TunDevice, VirtioNetHeader, end_with_thread, enter_mount_namespace,
    enter_network_namespace, new_mount_namespace, new_network_namespace, own_proc_directory,
    own_process_namespace,
};
pub use nowait::{
    drop_cached, is_cached, is_to_be_done_again, only_in_memory, read_cached, without_scanning,
    without_waiting, would_wait,
};
pub use passed::{ActivationSocket, ActivationSocketKind, take_passed_sockets};
pub use process::{
    CurrentProcessUsage, ForkedProcess, PerProcess, ProcessIdentity, ThreadAffinity, cpu_ns_of_thread,
    current_core, fork_process, process_cpu_ns, process_usage, raise_open_files, terminate, thread_cpu_ns,
    thread_id, usable_cores, with_signals_blocked,
};
pub use root::{PathResolutionMethod, RootDirectory, SymlinkPolicy};
pub use rustix::fs::{Mode, OFlags};
pub use rustix::io::Errno;
pub use rustix::process::Signal;
pub use shared::{
    FileSystemSharing, forget_names, inode_among, inode_in, keeps_entries_in_place, look_again,
    look_up_existing, require_kept, stat_now,
};
pub use signal::{after_signal, ask_after_signals, is_ignored, sleep, wait_at_most, with_grace};
pub use socket::{
    PeerCredentials, SocketBlockingMode, TcpInfo, is_closed_by_peer, is_writable, keep_alive, offer_room,
    peer_of, receive, receive_with_descriptor, send_all, send_file, send_more, send_unpaced_on_loopback,
    set_receive_low_water, set_receive_timeout, tcp_info,
};
pub use streams::{StandardStream, was_closed_at_start};
pub use verdict::{MountGuaranteeVerdict, SharedMountGuarantee};
pub use watch::{DirectoryChange, DirectoryWatcher, WatchId};
