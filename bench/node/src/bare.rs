//! A bare server and client that measure the cost of sockets alone: a request is 16 bytes, and a response is 16 bytes
//! plus content.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fordway_sys::{
    Errno, Mode, OFlags, SocketBlockingMode, open_in, read_into_spare, receive, receive_with_descriptor,
    send_all, stat,
};

use crate::{lookout, small};

/// The kind of request, which is the first byte of the request.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum BareSocketRequest {
    /// Returns 4 KiB from memory.
    Echo,
    /// Returns 4 KiB of a file, read with open, fstat, pread and close.
    Small,
    /// Passes a file descriptor of a 1 MiB file.
    Descriptor,
}

const MESSAGE_BYTES: usize = 16;

/// Serves until standard input ends, with one thread for each connection.
pub(crate) fn serve(root: &Path, socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    let dir = File::open(root.join("bucket"))?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            if let Ok(dir) = dir.try_clone() {
                std::thread::spawn(move || answer_all(&client, &dir));
            }
        }
    });
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

fn answer_all(client: &UnixStream, dir: &File) -> Result<()> {
    static OPEN: AtomicUsize = AtomicUsize::new(0);
    OPEN.fetch_add(1, Ordering::Relaxed);
    let (cores, lookout) = (std::thread::available_parallelism()?.get(), lookout()?);
    let (mut request, mut content) = ([0; MESSAGE_BYTES], vec![7; 4096]);
    loop {
        // Do not poll after passing a file descriptor: the client then reads the file, which takes longer than the
        // polling time.
        let is_large = request[0] == BareSocketRequest::Descriptor as u8;
        let looks_out = !lookout.is_zero() && !is_large && 2 * OPEN.load(Ordering::Relaxed) <= cores;
        let received = wait(looks_out, |wait| receive(client, &mut request, wait));
        if received.is_err() || received == Ok(0) {
            OPEN.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        let reply = [u8::from(looks_out && request[0] != BareSocketRequest::Descriptor as u8); MESSAGE_BYTES];
        match request[0] {
            0 => send_all(client, &reply, &content, None)?,
            1 => {
                let file = open_in(dir, &small(usize::from(request[1])), OFlags::RDONLY, Mode::empty())?;
                let size = stat(&file)?.size as usize;
                content.clear();
                read_into_spare(&file, &mut content, 0, size)?;
                drop(file);
                send_all(client, &reply, &content, None)?;
            }
            _ => {
                let file = open_in(dir, "1MiB", OFlags::RDONLY, Mode::empty())?;
                stat(&file)?;
                send_all(client, &reply, &[], Some(file.as_fd()))?;
            }
        }
    }
}

/// Polls for 20 µs if `looks_out`, then blocks.
fn wait<T>(
    looks_out: bool,
    mut receive: impl FnMut(SocketBlockingMode) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let since = Instant::now();
    while looks_out && since.elapsed() < Duration::from_micros(20) {
        match receive(SocketBlockingMode::No) {
            Err(Errno::WOULDBLOCK) => std::hint::spin_loop(),
            done => return done,
        }
    }
    receive(SocketBlockingMode::Yes)
}

/// A client of the bare server.
pub(crate) struct BareSocketClient {
    socket: UnixStream,
    buffer: Vec<u8>,
    looks_out: bool,
}

impl BareSocketClient {
    pub(crate) fn connect(socket: &Path) -> Result<Self> {
        Ok(BareSocketClient { socket: UnixStream::connect(socket)?, buffer: vec![0; 8192], looks_out: false })
    }

    /// Requests 4 KiB, and stores them in `body`.
    pub(crate) fn small(&mut self, ask: BareSocketRequest, number: usize, body: &mut Vec<u8>) -> Result<()> {
        let mut request = [0; MESSAGE_BYTES];
        (request[0], request[1]) = (ask as u8, number as u8);
        send_all(&self.socket, &request, &[], None)?;
        let mut got = 0;
        while got < MESSAGE_BYTES + 4096 {
            let (socket, room) = (&self.socket, &mut self.buffer[got..]);
            let (count, _) = wait(self.looks_out, |wait| receive_with_descriptor(socket, room, wait))?;
            ensure!(count > 0, "the bare server has exited");
            got += count;
        }
        self.looks_out = self.buffer[0] == 1;
        body.clear();
        body.extend_from_slice(&self.buffer[MESSAGE_BYTES..got]);
        Ok(())
    }

    /// Requests the file descriptor of the 1 MiB file, and reads the file into `body`.
    pub(crate) fn descriptor(&mut self, body: &mut Vec<u8>) -> Result<()> {
        send_all(&self.socket, &[BareSocketRequest::Descriptor as u8; MESSAGE_BYTES], &[], None)?;
        let (socket, room) = (&self.socket, &mut self.buffer);
        let (_, file) = wait(self.looks_out, |wait| receive_with_descriptor(socket, room, wait))?;
        self.looks_out = self.buffer[0] == 1;
        body.clear();
        let got = read_into_spare(file.unwrap_or(Err(Errno::BADF))?, body, 0, 1 << 20)?;
        ensure!(got == 1 << 20, "{got} bytes");
        Ok(())
    }
}
