//! Two processes with a link between them. What either of them does is the same on any link, so that
//! what differs between transports is the link alone.

use std::time::Instant;

use fordway_measure::Lane;
use fordway_store::Result;
use fordway_sys::process_cpu_ns;

use super::order::ORDER_BYTES;
use super::{Done, Exchange, Order, Transport};
use crate::pattern::noise;

/// What asks for a message, or for a window of them.
const REQUEST: [u8; 8] = *b"message?";
/// What the buffer is filled with before a block, so that bytes of an earlier one cannot pass for new.
const POISON: u8 = 0xa5;

/// A connection to one other process, on which messages keep their order. Lengths are known to both.
pub trait Link {
    /// Sends one message.
    fn send(&mut self, bytes: &[u8]) -> Result<()>;

    /// Waits for one message that fills `buffer`.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<()>;

    /// Sends `bytes` this many times, all of them under way at once.
    fn send_window(&mut self, bytes: &[u8], times: usize) -> Result<()>;

    /// Waits for as many messages of `size` bytes as `buffer` holds, all expected at once.
    fn receive_window(&mut self, buffer: &mut [u8], size: usize) -> Result<()>;

    /// Waits for a message as [`Link::receive`] does, but leaves the processor to others however long
    /// it takes: between two blocks somebody else is measured.
    fn receive_idly(&mut self, buffer: &mut [u8]) -> Result<()>;
}

/// The side that asks. When it is dropped, the other side is told that there is nothing more to do.
pub struct Linked<L: Link> {
    lane: Lane,
    link: L,
    content: Vec<u8>,
    buffer: Vec<u8>,
}

impl<L: Link> Linked<L> {
    /// On a link at whose other end is [`follow`].
    pub fn new(lane: Lane, link: L) -> Self {
        Linked { lane, link, content: Vec::new(), buffer: Vec::new() }
    }

    fn step(&mut self, order: &Order) -> Result<()> {
        let (size, window_bytes) = (order.size_bytes as usize, order.window_bytes() as usize);
        match order.exchange {
            Exchange::PingPong => {
                self.link.send(&self.content[..size])?;
                self.link.receive(&mut self.buffer[..size])
            }
            Exchange::Fetch => {
                self.link.send(&REQUEST)?;
                self.link.receive(&mut self.buffer[..size])
            }
            Exchange::Stream => {
                self.link.send(&REQUEST)?;
                self.link.receive_window(&mut self.buffer[..window_bytes], size)
            }
        }
    }

    /// The steps that count, one after the other, and the CPU time of this process meanwhile.
    fn timed_steps(&mut self, order: &Order) -> Result<Done> {
        let mut done = Done { durations_ns: Vec::with_capacity(order.count as usize), ..Done::default() };
        let before_ns = own_cpu_ns();
        let started = Instant::now();
        let mut last = started;
        for _ in 0..order.count {
            self.step(order)?;
            let now = Instant::now();
            done.durations_ns.push((now - last).as_nanos() as u64);
            last = now;
        }
        done.elapsed_ns = (last - started).as_nanos() as u64;
        done.client_cpu_ns = own_cpu_ns().saturating_sub(before_ns);
        Ok(done)
    }

    fn is_right(&self, order: &Order) -> bool {
        let (size, window_bytes) = (order.size_bytes as usize, order.window_bytes() as usize);
        self.buffer[..window_bytes].chunks_exact(size).all(|message| *message == self.content[..size])
    }
}

impl<L: Link> Drop for Linked<L> {
    fn drop(&mut self) {
        // A side that is gone need not be told.
        let _ = self.link.send(&[0; ORDER_BYTES]);
    }
}

impl<L: Link> Transport for Linked<L> {
    fn lane(&self) -> &Lane {
        &self.lane
    }

    fn can(&self, _: Exchange) -> bool {
        true
    }

    fn carry_out(&mut self, order: &Order) -> Result<Done> {
        let window_bytes = order.window_bytes() as usize;
        make_content(&mut self.content, order.size_bytes as usize);
        self.buffer.resize(self.buffer.len().max(window_bytes), 0);
        self.link.send(&order.to_bytes())?;
        for _ in 0..order.warm_up {
            self.step(order)?;
        }
        self.buffer[..window_bytes].fill(POISON);
        // Both sides read their clocks of CPU time now, and not while the other is still busy.
        let mut word = [0; 8];
        self.link.send(&REQUEST)?;
        self.link.receive(&mut word)?;
        let mut done = self.timed_steps(order)?;
        self.link.receive(&mut word)?;
        done.server_cpu_ns = Some(u64::from_le_bytes(word));
        done.is_right = self.is_right(order);
        if order.exchange == Exchange::PingPong {
            done.durations_ns.iter_mut().for_each(|ns| *ns /= 2);
        }
        Ok(done)
    }
}

/// The side that answers: does what the other end's [`Linked`] asks for until that has ended.
pub fn follow(link: &mut dyn Link) -> Result<()> {
    let (mut content, mut buffer) = (Vec::new(), Vec::new());
    loop {
        let mut order = [0; ORDER_BYTES];
        link.receive_idly(&mut order)?;
        let Some(order) = Order::from_bytes(&order) else { return Ok(()) };
        let size = order.size_bytes as usize;
        make_content(&mut content, size);
        buffer.resize(buffer.len().max(size), 0);
        let answer = |link: &mut dyn Link, buffer: &mut [u8]| match order.exchange {
            Exchange::PingPong => {
                link.receive(&mut buffer[..size])?;
                link.send(&content[..size])
            }
            Exchange::Fetch => {
                link.receive(&mut [0; REQUEST.len()])?;
                link.send(&content[..size])
            }
            Exchange::Stream => {
                link.receive(&mut [0; REQUEST.len()])?;
                link.send_window(&content[..size], order.window as usize)
            }
        };
        (0..order.warm_up).try_for_each(|_| answer(link, &mut buffer))?;
        link.receive(&mut [0; REQUEST.len()])?;
        let before_ns = own_cpu_ns();
        link.send(&[0; 8])?;
        (0..order.count).try_for_each(|_| answer(link, &mut buffer))?;
        link.send(&own_cpu_ns().saturating_sub(before_ns).to_le_bytes())?;
    }
}

fn make_content(content: &mut Vec<u8>, size: usize) {
    if content.len() < size {
        *content = noise(size);
    }
}

pub(super) fn own_cpu_ns() -> u64 {
    process_cpu_ns(std::process::id()).unwrap_or_default()
}
