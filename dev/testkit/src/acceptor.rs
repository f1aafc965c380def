//! The sockets of a server in a test: each connection has a thread, and all are gone when the server is.

use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Takes connections on a free port. Dropping it closes them, even if a thread waits on them.
#[derive(Debug)]
pub(crate) struct Acceptor {
    open: Arc<Open>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// What is closed at the end.
#[derive(Debug, Default)]
pub(crate) struct Open {
    sockets: Mutex<Vec<TcpStream>>,
    is_stopping: AtomicBool,
}

impl Acceptor {
    /// Calls `serve` for each connection to `address`, with its number from 0 on and what keeps further
    /// sockets, and closes it then.
    /// Panics if there is no port, as everything here does when a test cannot go on.
    pub(crate) fn start(
        address: Ipv4Addr,
        serve: impl Fn(&TcpStream, usize, &Open) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((address, 0)).expect("a free port of a loopback address");
        let address = listener.local_addr().expect("the port that was bound");
        let open = Arc::new(Open::default());
        let thread = {
            let open = Arc::clone(&open);
            std::thread::spawn(move || open.accept(&listener, &serve))
        };
        Acceptor { open, address, thread: Some(thread) }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections taken so far.
    pub(crate) fn connections(&self) -> usize {
        lock(&self.open.sockets).len()
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.open.is_stopping.store(true, Ordering::Release);
        for socket in lock(&self.open.sockets).iter() {
            let _ = socket.shutdown(Shutdown::Both);
        }
        // Wakes the thread; if nobody accepts any more, it has ended.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Open {
    /// Gives each connection a thread, and waits for all of them at the end.
    fn accept(&self, listener: &TcpListener, serve: &(impl Fn(&TcpStream, usize, &Open) + Sync)) {
        std::thread::scope(|scope| {
            for stream in listener.incoming() {
                if self.is_stopping.load(Ordering::Acquire) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let Some(number) = self.keep(&stream) else { continue };
                scope.spawn(move || {
                    // Without it what follows a head waits for the client's acknowledgement of that.
                    let _ = stream.set_nodelay(true);
                    serve(&stream, number, self);
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        // The copies that are kept would hold connections open that were closed.
        lock(&self.sockets).clear();
    }

    /// Has the socket closed at the end, and answers its number. `None` where descriptors ran out.
    pub(crate) fn keep(&self, socket: &TcpStream) -> Option<usize> {
        let mut sockets = lock(&self.sockets);
        sockets.push(socket.try_clone().ok()?);
        if self.is_stopping.load(Ordering::Acquire) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        Some(sockets.len() - 1)
    }
}

/// What is behind `mutex`, even after a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
