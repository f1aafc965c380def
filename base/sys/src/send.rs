//! Sending on sockets that must not block.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Result;
use rustix::net::SendFlags;

use crate::call::sendfile;

/// Sends up to `len` bytes of `file` from `offset` without a copy through this process; returns how
/// many, 0 at the end of the file. Errors: `AGAIN` where the socket takes nothing now.
/// Cost: one `sendfile`; the calling thread waits for what is not in memory.
pub fn send_file(socket: impl AsFd, file: impl AsFd, offset: u64, len: usize) -> Result<usize> {
    sendfile(socket, file, Some(&mut { offset }), len)
}

/// Sends some of `data`, telling the kernel that more follows at once, so that both may share a
/// segment; returns how many bytes. Errors: `AGAIN` where the socket takes nothing now.
pub fn send_more(socket: impl AsFd, data: &[u8]) -> Result<usize> {
    rustix::net::send(socket, data, SendFlags::MORE | SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

/// Whether `socket` takes something now. Cost: one `poll`, much less than a call that is refused.
pub fn is_writable(socket: impl AsFd) -> Result<bool> {
    let mut wanted = [PollFd::new(&socket, PollFlags::OUT)];
    Ok(rustix::event::poll(&mut wanted, Some(&Timespec::default()))? > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_file_goes_out_behind_its_head() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let (near, mut far) = UnixStream::pair().unwrap();
        assert_eq!(send_more(&near, b"head "), Ok(5));
        assert_eq!(send_file(&near, &file, 3, 4), Ok(4));
        assert_eq!(send_file(&near, &file, 10, 4), Ok(0));
        assert_eq!(is_writable(&near), Ok(true));
        drop(near);
        let mut taken = String::new();
        far.read_to_string(&mut taken).unwrap();
        assert_eq!(taken, "head 3456");
    }

    #[test]
    fn a_full_socket_is_not_writable() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let mut sent = 0;
        while is_writable(&near).unwrap() {
            sent += send_more(&near, &[7; 4096]).unwrap();
        }
        far.read_exact(&mut vec![0; sent]).unwrap();
        assert_eq!(is_writable(&near), Ok(true));
    }
}
