//! Standard streams that were closed when the program started. Before `main`, Rust opens `/dev/null` in place of each
//! closed stream, so that no other file gets the stream's number. Without this module, a program would therefore read
//! empty input instead of getting an error.

use std::sync::atomic::{AtomicU8, Ordering};

/// A standard stream of a process; its value is the number of its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StandardStream {
    /// Standard input.
    Input = 0,
    /// Standard output.
    Output = 1,
    /// Standard error.
    Error = 2,
}

/// One bit for each stream that was closed.
static CLOSED_AT_START: AtomicU8 = AtomicU8::new(0);

/// Returns whether the stream was closed when the program started. In a library, the result is the stream's state at
/// the time at which the library was loaded. Cost: none.
pub fn was_closed_at_start(stream: StandardStream) -> bool {
    CLOSED_AT_START.load(Ordering::Relaxed) & (1 << stream as u8) != 0
}

extern "C" fn note_closed_streams() {
    for number in 0..3 {
        // SAFETY: the call takes no pointer, and reports a number that is not an open file as an error.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
            CLOSED_AT_START.fetch_or(1 << number, Ordering::Relaxed);
        }
    }
}

// SAFETY: the loader calls the functions in this section before `main`, with arguments that this function does not
// read. The function uses nothing that Rust's runtime has to set up first: only system calls and an atomic.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED_STREAMS: extern "C" fn() = note_closed_streams;

#[cfg(test)]
mod tests {
    use super::*;

    /// The streams of the test program are open. The tests of the command line start a program with closed streams.
    #[test]
    fn open_streams_are_not_noted() {
        for stream in [StandardStream::Input, StandardStream::Output, StandardStream::Error] {
            assert!(!was_closed_at_start(stream), "{stream:?}");
        }
    }
}
