//! What the kernel knows of a TCP connection.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Result;

use crate::xattr::last_errno;

/// A connection's state as the kernel measured it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time, microseconds.
    pub rtt_us: u32,
    /// Segments that were sent again.
    pub retransmits: u32,
    /// The largest segment sent, bytes.
    pub mss_bytes: u32,
}

/// Asks the kernel (`TCP_INFO`). Errors: `OPNOTSUPP` and others for what is no TCP socket.
pub fn tcp_info(socket: impl AsFd) -> Result<TcpInfo> {
    // SAFETY: `tcp_info` is plain data, for which all zeros is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: `info` has room for `length` bytes, which is all that the kernel may fill; an older
    // kernel fills less.
    let done = unsafe {
        libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &raw mut length)
    };
    match done {
        0 => Ok(TcpInfo {
            rtt_us: info.tcpi_rtt,
            retransmits: info.tcpi_total_retrans,
            mss_bytes: info.tcpi_snd_mss,
        }),
        _ => Err(last_errno()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connection_has_a_round_trip_and_a_file_has_none() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let info = tcp_info(&stream).unwrap();
        assert!(info.rtt_us > 0 && info.mss_bytes > 500 && info.retransmits == 0, "{info:?}");
        tcp_info(std::fs::File::open("/proc/self/stat").unwrap()).expect_err("a file is no socket");
    }
}
