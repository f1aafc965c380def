//! Memory for content whose length the sender declares.

use crate::{Error, ErrorKind, Result};

/// The maximum number of bytes that are allocated for a declared length before any byte has arrived. The system
/// provides memory only when it is written to, so a declared length up to this limit does not by itself use memory.
pub const TRUSTED_BYTES: usize = 256 << 20;
/// The number of bytes that are first cleared and then filled in one step, once [`TRUSTED_BYTES`] have arrived. A piece
/// of this size stays in the processor's cache between clearing and filling.
const PIECE_BYTES: usize = 1 << 20;

/// Fills `buffer` with `len` bytes. Each call of `receive` must fill all of its slice with the next bytes. Beyond 256
/// MiB, the size of the allocation is at most twice the number of bytes that have arrived, regardless of the declared
/// length.
///
/// The previous content of the buffer is not cleared first, because that would cost a pass over memory. After an error,
/// the content of the buffer is undefined. Errors: the errors of `receive`; `EntityTooLarge` if there is no memory.
pub fn receive_exact(
    buffer: &mut Vec<u8>,
    len: usize,
    mut receive: impl FnMut(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let first = len.min(TRUSTED_BYTES.max(buffer.capacity()));
    match buffer.capacity() < first {
        true => *buffer = vec![0; first],
        false => buffer.resize(first, 0),
    }
    receive(buffer)?;
    receive_rest(buffer, len, PIECE_BYTES, receive)
}

/// Appends to `buffer` until it has `len` bytes, as [`receive_exact`] does after the first 256 MiB. Each call of
/// `receive` gets a slice of at most `piece_bytes`.
pub fn receive_rest(
    buffer: &mut Vec<u8>,
    len: usize,
    piece_bytes: usize,
    mut receive: impl FnMut(&mut [u8]) -> Result<()>,
) -> Result<()> {
    while buffer.len() < len {
        let there = buffer.len();
        let more = there.max(piece_bytes).min(len - there);
        buffer.try_reserve_exact(more).map_err(|_| too_large(len))?;
        while buffer.len() < there + more {
            let filled = buffer.len();
            buffer.resize(filled + piece_bytes.min(there + more - filled), 0);
            receive(&mut buffer[filled..])?;
        }
    }
    Ok(())
}

/// Checks that there is memory for one and a half times the total of `lengths`. Without this check, a program that
/// later runs out of memory would terminate without returning an error. Errors: `InvalidRange`. Cost: none for up to
/// 256 MiB; two system calls for more.
pub fn check_room(lengths: impl IntoIterator<Item = usize>) -> Result<()> {
    let total = lengths.into_iter().fold(0, usize::saturating_add);
    if total <= TRUSTED_BYTES {
        return Ok(());
    }
    let room = Vec::<u8>::new().try_reserve_exact(total.saturating_add(total / 2));
    room.map_err(|_| {
        let detail =
            format!("there is no memory for {total} bytes at once; request fewer, or copy them to a file");
        Error::new(ErrorKind::InvalidRange, detail)
    })
}

fn too_large(len: usize) -> Error {
    let detail = format!("there is no memory for {len} bytes; read a range of it, or copy it to a file");
    Error::new(ErrorKind::EntityTooLarge, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `len` bytes from a source that ends after `there` bytes.
    fn received(buffer: &mut Vec<u8>, len: usize, there: usize) -> Result<()> {
        let mut at = 0;
        receive_exact(buffer, len, |piece| {
            if at + piece.len() > there {
                return Err(ErrorKind::IncompleteBody.into());
            }
            piece.iter_mut().for_each(|byte| {
                *byte = (at % 251) as u8;
                at += 1;
            });
            Ok(())
        })
    }

    #[test]
    fn small_and_large_are_filled() {
        for len in [0, 1, 70_000, TRUSTED_BYTES + 3 * PIECE_BYTES + 1] {
            let mut buffer = b"left over".to_vec();
            received(&mut buffer, len, len).unwrap();
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().enumerate().step_by(97).all(|(at, byte)| *byte == (at % 251) as u8));
        }
    }

    #[test]
    fn a_large_number_takes_no_memory() {
        for len in [1 << 40, 1 << 50, isize::MAX as usize, usize::MAX] {
            let mut buffer = Vec::new();
            assert_eq!(received(&mut buffer, len, 10).unwrap_err().kind(), ErrorKind::IncompleteBody);
            assert!(buffer.capacity() <= TRUSTED_BYTES, "{len}");
        }
    }

    #[test]
    fn room_is_looked_for() {
        assert!(check_room([1, TRUSTED_BYTES, 7]).is_ok());
        for lengths in [[1, usize::MAX], [usize::MAX, usize::MAX], [0, isize::MAX as usize]] {
            assert_eq!(check_room(lengths).unwrap_err().kind(), ErrorKind::InvalidRange);
        }
    }

    #[test]
    fn a_buffer_is_used_again() {
        let mut buffer = Vec::with_capacity(1 << 20);
        let place = buffer.as_ptr();
        received(&mut buffer, 1 << 19, 1 << 19).unwrap();
        assert_eq!((buffer.as_ptr(), buffer.len()), (place, 1 << 19));
    }
}
