//! How much of answers is read ahead of their clients. What is read waits in memory for the client's window and for
//! the socket, and of answers that nobody takes there may be thousands on a few connections. Where much waits, an answer
//! gets its next piece when its last one is gone; where very much waits, a small one. No answer waits for the window of
//! another, so a client that holds one closed keeps nobody waiting.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::content::PIECE_BYTES;

/// Waiting for the client of one connection, up to which its answers are read ahead as they can be.
const CONNECTION_BYTES: u64 = 4 << 20;
/// The same for all clients of the process together.
const PROCESS_BYTES: u64 = 32 << 20;
/// What is read at a time where twice as much waits.
const SMALL_BYTES: u64 = 4 << 10;

static OF_PROCESS: AtomicU64 = AtomicU64::new(0);

/// What waits for the client of a connection; clones are of the same one.
#[derive(Clone, Default)]
pub(crate) struct HeldBytes(Arc<AtomicU64>);

/// What waits of one answer.
#[derive(Default)]
struct Own {
    bytes: AtomicU64,
    /// The tasks that wait for it to be gone.
    waker: Mutex<Option<Waker>>,
}

/// One answer's share of what waits.
pub(super) struct HeldAnswer {
    of_connection: HeldBytes,
    own: Arc<Own>,
}

impl HeldBytes {
    /// For another answer on the connection.
    pub(super) fn answer(&self) -> HeldAnswer {
        HeldAnswer { of_connection: self.clone(), own: Arc::default() }
    }

    /// How many times as much waits as is read ahead freely, of the connection or of all: 0, 1, ...
    fn excess(&self) -> u64 {
        let (ours, all) = (self.0.load(Ordering::Relaxed), OF_PROCESS.load(Ordering::Relaxed));
        (ours / CONNECTION_BYTES).max(all / PROCESS_BYTES)
    }
}

impl HeldAnswer {
    /// What may be read next.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<u64> {
        let excess = self.of_connection.excess();
        if excess > 0 && self.own.is_held() {
            *self.own.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
            // It may have gone before it was known who waits.
            if self.own.is_held() {
                return Poll::Pending;
            }
        }
        Poll::Ready(if excess > 1 { SMALL_BYTES } else { PIECE_BYTES })
    }

    /// The same piece, counted until nobody needs it any more.
    pub(super) fn hold(&self, piece: Bytes) -> Bytes {
        let bytes = piece.len() as u64;
        for held in [&self.of_connection.0, &self.own.bytes, &OF_PROCESS] {
            held.fetch_add(bytes, Ordering::Relaxed);
        }
        let (of_connection, own) = (self.of_connection.clone(), self.own.clone());
        Bytes::from_owner(HeldPiece { piece, of_connection, own })
    }
}

impl Own {
    fn is_held(&self) -> bool {
        self.bytes.load(Ordering::SeqCst) > 0
    }
}

struct HeldPiece {
    piece: Bytes,
    of_connection: HeldBytes,
    own: Arc<Own>,
}

impl AsRef<[u8]> for HeldPiece {
    fn as_ref(&self) -> &[u8] {
        &self.piece
    }
}

impl Drop for HeldPiece {
    fn drop(&mut self) {
        let bytes = self.piece.len() as u64;
        self.of_connection.0.fetch_sub(bytes, Ordering::Relaxed);
        OF_PROCESS.fetch_sub(bytes, Ordering::Relaxed);
        if self.own.bytes.fetch_sub(bytes, Ordering::SeqCst) == bytes {
            let waker = self.own.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn piece() -> Bytes {
        Bytes::from(vec![7; PIECE_BYTES as usize])
    }

    #[test]
    fn an_answer_waits_for_itself_alone() {
        let (one, other) = (HeldBytes::default(), HeldBytes::default());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let context = Context::from_waker(&waker);
        let greedy = one.answer();
        let mut held = Vec::new();
        while greedy.poll_room(&context).is_ready() {
            held.push(greedy.hold(piece()));
        }
        assert_eq!(held.len() as u64 * PIECE_BYTES, CONNECTION_BYTES);
        assert_eq!(one.answer().poll_room(&context), Poll::Ready(PIECE_BYTES), "another answer");
        assert_eq!(other.answer().poll_room(&context), Poll::Ready(PIECE_BYTES), "another client");
        let many: Vec<_> = (0..held.len()).map(|_| (one.answer(), one.answer().hold(piece()))).collect();
        assert_eq!(one.answer().poll_room(&context), Poll::Ready(SMALL_BYTES));
        let rest = held[0].slice(5..9);
        held.clear();
        assert_eq!((woken.0.load(Ordering::Relaxed), &rest[..]), (0, &[7; 4][..]));
        drop(rest);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1, "its last piece is gone");
        drop(many);
        assert_eq!(one.0.load(Ordering::Relaxed), 0);
        assert_eq!(greedy.poll_room(&context), Poll::Ready(PIECE_BYTES));
    }
}
