//! What a transport is asked to do, and what it answers.

use serde::{Deserialize, Serialize};

/// What is done with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exchange {
    /// Ask for a message, and wait until all of it is here.
    Fetch,
    /// Ask for several at once, and wait until all of all is here.
    Stream,
    /// Send a message and wait for one as large; half of that time counts.
    PingPong,
}

impl Exchange {
    /// All, in the order they run.
    pub const ALL: [Exchange; 3] = [Exchange::Fetch, Exchange::Stream, Exchange::PingPong];

    /// The first word of its phases.
    pub const fn name(self) -> &'static str {
        match self {
            Exchange::Fetch => "latency",
            Exchange::Stream => "bandwidth",
            Exchange::PingPong => "half-round-trip",
        }
    }

    /// How many of its durations follow one another in the time that one takes.
    pub(super) const fn trips(self) -> u64 {
        match self {
            Exchange::PingPong => 2,
            Exchange::Fetch | Exchange::Stream => 1,
        }
    }

    fn code(self) -> u64 {
        Exchange::ALL.iter().position(|other| *other == self).unwrap_or_default() as u64
    }
}

/// One block of messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// What is done.
    pub exchange: Exchange,
    /// Bytes of each message, at least 1.
    pub size_bytes: u64,
    /// Messages under way at once; 1 but for [`Exchange::Stream`].
    pub window: u64,
    /// How often it is done and timed.
    pub count: u64,
    /// How often before that, untimed.
    pub warm_up: u64,
}

/// Bytes of an order between two ends of a link.
pub(super) const ORDER_BYTES: usize = 40;

impl Order {
    /// Bytes that are under way at once.
    pub fn window_bytes(&self) -> u64 {
        self.size_bytes * self.window
    }

    /// For the other end of a link.
    pub(super) fn to_bytes(self) -> [u8; ORDER_BYTES] {
        let words = [self.exchange.code(), self.size_bytes, self.window, self.count, self.warm_up];
        let mut bytes = [0; ORDER_BYTES];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What [`Order::to_bytes`] wrote; `None` says that there is nothing more to do.
    pub(super) fn from_bytes(bytes: &[u8; ORDER_BYTES]) -> Option<Self> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[8 * at + byte]));
        let exchange = *Exchange::ALL.get(usize::try_from(word(0)).ok()?)?;
        let order =
            Order { exchange, size_bytes: word(1), window: word(2), count: word(3), warm_up: word(4) };
        (order.size_bytes > 0).then_some(order)
    }
}

/// What became of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// How long each took: a message, a window of them, or half a round trip.
    pub durations_ns: Vec<u64>,
    /// From the first start to the last end.
    pub elapsed_ns: u64,
    /// CPU time of the side that asks.
    pub client_cpu_ns: u64,
    /// CPU time of the side that answers; `None` where there is none.
    pub server_cpu_ns: Option<u64>,
    /// Whether the bytes that came last are the right ones.
    pub is_right: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_cross_a_link() {
        for exchange in Exchange::ALL {
            let order = Order { exchange, size_bytes: 1 << 40, window: 64, count: 7, warm_up: 0 };
            assert_eq!(Order::from_bytes(&order.to_bytes()), Some(order));
        }
        assert_eq!(Order::from_bytes(&[0; ORDER_BYTES]), None);
        assert_eq!(Order::from_bytes(&[0xff; ORDER_BYTES]), None);
    }
}
