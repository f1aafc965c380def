//! The threads that serve connections. The gateway uses only as many threads as the load needs.
//!
//! A thread for which another request is always waiting never sleeps, and need not be woken. On loopback, waking a
//! thread takes two thirds of the time of a small request. Therefore, all connections are kept on one thread until this
//! thread is fully busy. Connections are spread over more threads only if the machine also has idle processors.
//! `balance` decides how many threads are needed, and moves connections.

mod balance;

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use fordway_store::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Notify, oneshot};

use crate::limits::forget_turns;
use balance::MovableConnection;

/// The maximum number of reader threads per serving thread. Reader threads read content that is not in memory.
pub(crate) const READERS_MAX: usize = 32;

thread_local! {
    /// The index of the serving thread; `usize::MAX` on all other threads.
    static HERE: Cell<usize> = const { Cell::new(usize::MAX) };
    /// Whether the connection that is being polled cannot register its socket with another thread.
    static STAYS: Cell<bool> = const { Cell::new(false) };
}

/// Returns the index of the calling thread. All threads that do not serve connections share one index, which no serving
/// thread has.
pub(crate) fn here() -> usize {
    HERE.get()
}

/// Records that the socket of the calling connection cannot be registered with another thread. Such a connection is
/// moved only to give the connection more CPU time, not to reduce the number of threads.
pub(crate) fn stay() {
    STAYS.set(true);
}

/// The serving threads of a gateway. Each thread stops when its sender is dropped.
pub(crate) struct ServingThreadPool {
    pool: Arc<ServingThreadPoolState>,
    threads: Vec<(oneshot::Sender<()>, JoinHandle<()>)>,
}

/// The state of the threads, which all connections share.
struct ServingThreadPoolState {
    workers: Vec<ServingThread>,
    /// The number of threads that serve connections. These are the first `active` threads.
    active: AtomicUsize,
    /// Notified for each new connection.
    arrival: Notify,
}

/// One thread, and the counts of its connections and of its surplus connections.
struct ServingThread {
    runtime: Handle,
    connections: AtomicUsize,
    /// The number of this thread's connections that should move to other threads.
    surplus: AtomicUsize,
}

impl ServingThreadPool {
    /// Starts `count` threads. Errors: `Io`.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let (mut workers, mut threads) = (Vec::new(), Vec::new());
        for number in 0..count.max(1) {
            let runtime = new_runtime()?;
            let (connections, surplus) = (AtomicUsize::new(0), AtomicUsize::new(0));
            workers.push(ServingThread { runtime: runtime.handle().clone(), connections, surplus });
            threads.push(start_thread(number, runtime)?);
        }
        let pool =
            Arc::new(ServingThreadPoolState { workers, active: AtomicUsize::new(1), arrival: Notify::new() });
        Ok(ServingThreadPool { pool, threads })
    }

    /// Returns the number of threads.
    pub(crate) fn len(&self) -> usize {
        self.pool.workers.len()
    }

    /// Serves a connection on one of the threads.
    pub(crate) fn serve(&self, connection: impl Future<Output = ()> + Send + 'static) {
        self.pool.put(Box::pin(connection), None);
        self.pool.arrival.notify_one();
    }

    /// Adjusts the number of active threads to the load, until the returned future is dropped.
    pub(crate) async fn balance(&self) {
        balance::keep(&self.pool).await;
    }

    /// Stops the threads; connections that are still open are closed.
    pub(crate) fn finish(self) {
        let (ends, threads): (Vec<_>, Vec<_>) = self.threads.into_iter().unzip();
        drop(ends);
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread that served connections panicked");
            }
        }
    }
}

impl ServingThreadPoolState {
    /// Starts a connection on the thread with the fewest connections. `from` is the thread that the connection leaves,
    /// if any.
    fn put(self: &Arc<Self>, connection: balance::ConnectionFuture, from: Option<usize>) {
        let at = self.emptiest();
        self.workers[at].connections.fetch_add(1, Ordering::Relaxed);
        if let Some(from) = from {
            // The count is decremented before the connection continues. When the client gets its next response, the
            // connection is therefore no longer counted twice.
            self.workers[from].connections.fetch_sub(1, Ordering::Relaxed);
        }
        self.workers[at].runtime.spawn(MovableConnection::new(connection, self.clone(), at));
    }

    fn emptiest(&self) -> usize {
        let active = self.active.load(Ordering::Relaxed).clamp(1, self.workers.len());
        let open = |at: &usize| self.workers[*at].connections.load(Ordering::Relaxed);
        (0..active).min_by_key(open).unwrap_or(0)
    }

    /// Returns whether a connection of thread `at` has to move to another thread. If the result is true, the caller
    /// must move the connection.
    fn is_to_leave(&self, at: usize, stays: bool) -> bool {
        let worker = &self.workers[at];
        if !stays && at >= self.active.load(Ordering::Relaxed) {
            return true;
        }
        let take_one = |surplus: usize| surplus.checked_sub(1);
        // The surplus (the number of connections that should move) is nearly always 0. Reading the surplus first is
        // cheap, whereas every update would be expensive.
        worker.surplus.load(Ordering::Relaxed) > 0
            && worker.surplus.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take_one).is_ok()
    }
}

fn start_thread(number: usize, runtime: Runtime) -> Result<(oneshot::Sender<()>, JoinHandle<()>)> {
    let (finish, finished) = oneshot::channel::<()>();
    let serve = move || {
        HERE.set(number);
        // No message is ever sent on this channel. The wait ends when the sender is dropped.
        let _ = runtime.block_on(finished);
        // The thread does not wait until the runtime has shut down, because a read from a hung device must not keep the
        // process alive.
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new().name(format!("fordway-http-{number}")).spawn(serve);
    Ok((finish, thread.map_err(no_thread)?))
}

/// Creates the runtime of one thread that serves connections. Errors: `Io`.
pub(crate) fn new_runtime() -> Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().thread_name("fordway-read").max_blocking_threads(READERS_MAX);
    builder.on_thread_park(forget_turns);
    builder.build().map_err(no_thread)
}

pub(crate) fn no_thread(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, "starting a thread of the gateway").caused_by(error)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::TlsCertificate;
    use crate::connection::ClientSocket;

    /// Responds to each byte with the index of the thread that read it.
    async fn tell_where(mut socket: ClientSocket) {
        let mut home = here();
        while socket.read_u8().await.is_ok() {
            socket.write_u8(u8::try_from(here()).unwrap()).await.unwrap();
            socket.flush().await.unwrap();
            if home != here() {
                socket.register_anew().unwrap();
                home = here();
            }
        }
    }

    async fn tell_plainly(socket: TcpStream) {
        tell_where(ClientSocket::Plain(tokio::net::TcpStream::from_std(socket).unwrap())).await;
    }

    fn clients(workers: &ServingThreadPool, count: usize) -> Vec<TcpStream> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let connect = |_| {
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (socket, _) = listener.accept().unwrap();
            socket.set_nonblocking(true).unwrap();
            workers.serve(tell_plainly(socket));
            client
        };
        (0..count).map(connect).collect()
    }

    /// Returns, for each client, the index of the thread that serves it.
    fn ask<C: Read + Write>(clients: &mut [C]) -> Vec<u8> {
        let ask = |client: &mut C| {
            let mut answer = [0];
            client.write_all(&[0]).unwrap();
            client.read_exact(&mut answer).unwrap();
            answer[0]
        };
        clients.iter_mut().map(ask).collect()
    }

    fn of_each_thread(places: &[u8]) -> Vec<usize> {
        (0..3).map(|thread| places.iter().filter(|at| **at == thread).count()).collect()
    }

    #[test]
    fn connections_go_where_threads_are_at_work() {
        let workers = ServingThreadPool::start(3).unwrap();
        let mut clients = clients(&workers, 6);
        assert_eq!(ask(&mut clients), [0; 6], "one thread is enough at first");
        for _ in 0..3 {
            workers.pool.set_active(3);
            assert_eq!(of_each_thread(&ask(&mut clients)), [2, 2, 2]);
            assert_eq!(of_each_thread(&ask(&mut clients)), [2, 2, 2], "they are not moved");
            workers.pool.set_active(2);
            assert_eq!(of_each_thread(&ask(&mut clients)), [3, 3, 0]);
            workers.pool.set_active(1);
            assert_eq!(ask(&mut clients), [0; 6]);
        }
        drop(clients);
        workers.finish();
    }

    #[test]
    fn who_cannot_take_his_socket_along_leaves_only_a_full_thread() {
        let workers = ServingThreadPool::start(3).unwrap();
        workers.pool.set_active(3);
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut clients: Vec<_> = (0..3)
            .map(|_| {
                let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let (socket, _) = listener.accept().unwrap();
                socket.set_nonblocking(true).unwrap();
                workers.serve(async {
                    stay();
                    tell_plainly(socket).await;
                });
                client
            })
            .collect();
        assert_eq!(of_each_thread(&ask(&mut clients)), [1, 1, 1]);
        workers.pool.set_active(1);
        assert_eq!(of_each_thread(&ask(&mut clients)), [1, 1, 1]);
        drop(clients);
        workers.finish();
    }

    #[test]
    fn encrypted_connections_move_too() {
        let directory = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let [certificate, key] = ["certificate", "key"].map(|name| directory.path().join(name));
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = TlsCertificate::load(&certificate, &key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trusting = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();

        let workers = ServingThreadPool::start(3).unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        accepted.set_nonblocking(true).unwrap();
        workers.serve(async move {
            let accepted = tokio::net::TcpStream::from_std(accepted).unwrap();
            tell_where(tls.accept(accepted, Duration::from_secs(30)).await.unwrap()).await;
        });
        let name = "localhost".try_into().unwrap();
        let session = ClientConnection::new(Arc::new(trusting), name).unwrap();
        let mut clients = [StreamOwned::new(session, socket)];
        assert_eq!(ask(&mut clients), [0]);
        for _ in 0..3 {
            workers.pool.set_active(3);
            workers.pool.workers[0].surplus.store(1, Ordering::Relaxed);
            // Thread 0 has the connection, so another thread has fewer connections.
            assert_ne!(ask(&mut clients), [0]);
            workers.pool.set_active(1);
            assert_eq!(ask(&mut clients), [0]);
        }
        drop(clients);
        workers.finish();
    }
}
