//! A client's socket, with the bytes that have been read ahead.

use std::fs::File;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BufMut as _;
use tokio::io::{AsyncRead as _, AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _, ReadBuf};

use crate::buffers::{BufferChunk, CHUNK_BYTES, give_buffer, take_buffer};
use crate::connection::ClientSocket;
use crate::connection::WaitDeadline;
use crate::content::{PIECE_BYTES, read_elsewhere, read_piece};
use crate::limits::{BodyTransferLimits, RatePacer, TransferRateMeter, UserResourceUsage};
use crate::workers::here;

/// The maximum number of bytes read at a time for a head: enough for the head and the small body that often follows it.
const READ_BYTES: usize = 16 * 1024;
/// The distance between the bytes that are probed to find out whether a file is in memory.
const PROBE_BYTES: u64 = 1024 * 1024;
/// The maximum number of bytes sent by one `sendfile` call. After this many bytes, the thread serves its other clients.
const TURN_BYTES: u64 = 4 * 1024 * 1024;
/// The time for which a refused client may continue to send. The client has to read the response within this time.
const LINGER: Duration = Duration::from_secs(5);

/// A connection, and the received bytes that have not been processed yet.
pub(crate) struct BufferedSocket {
    stream: ClientSocket,
    ahead: Vec<u8>,
    /// The number of bytes of `ahead` that have been used.
    used: usize,
    patience: WaitDeadline,
    limits: BodyTransferLimits,
    progress: TransferRateMeter,
    /// The user whose rate limit applies to the body being transferred, if any.
    payer: Option<Arc<UserResourceUsage>>,
    pacer: RatePacer,
    /// The number that identifies the thread whose runtime reports events on the socket.
    home: usize,
}

impl BufferedSocket {
    pub(crate) fn new(stream: ClientSocket, ahead: Vec<u8>, limits: BodyTransferLimits) -> Self {
        BufferedSocket {
            stream,
            ahead,
            used: 0,
            patience: WaitDeadline::default(),
            limits,
            progress: TransferRateMeter::default(),
            payer: None,
            pacer: RatePacer::default(),
            home: here(),
        }
    }

    /// Registers the socket with the thread that serves it now, if the connection has moved from another thread. Cost:
    /// nothing if the connection has not moved, otherwise four system calls. Errors: the errors of the operating
    /// system.
    pub(crate) fn settle(&mut self) -> io::Result<()> {
        if self.home != here() {
            self.stream.register_anew()?;
            self.patience = WaitDeadline::default();
            self.home = here();
        }
        Ok(())
    }

    /// Returns the bytes that were read and not yet used.
    pub(crate) fn ahead(&self) -> &[u8] {
        &self.ahead[self.used..]
    }

    /// Marks the first `count` bytes of [`BufferedSocket::ahead`] as used.
    pub(crate) fn consume(&mut self, count: usize) {
        self.used += count;
        if self.used == self.ahead.len() {
            self.release();
        }
    }

    /// Releases the buffer, so that an idle connection does not occupy memory for it.
    fn release(&mut self) {
        self.used = 0;
        give_buffer(std::mem::take(&mut self.ahead));
    }

    /// Sets the user whose rate limit applies to subsequent bodies; `None` for no rate limit.
    pub(crate) fn set_payer(&mut self, account: Option<Arc<UserResourceUsage>>) {
        self.payer = account;
    }

    /// Counts bytes of a body against the user's rate limit.
    fn charge(&self, bytes: usize) {
        if let Some(payer) = &self.payer {
            payer.charge(bytes as u64);
        }
    }

    /// Becomes ready when the user's rate allows more bytes.
    pub(crate) fn poll_allowed(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match &self.payer {
            Some(payer) => self.pacer.poll_allowed(payer, context),
            None => Poll::Ready(()),
        }
    }

    /// Waits until the user's rate allows more bytes.
    async fn pause(&mut self) {
        if self.payer.is_some() {
            poll_fn(|context| self.poll_allowed(context)).await;
        }
    }

    /// Reads more bytes of a body and appends them to the bytes read ahead. Returns 0 at the end of the stream. Errors:
    /// `TimedOut` if the client is too slow.
    pub(crate) fn poll_ahead_in_body(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Poll::Ready(read) = self.poll_ahead(context, self.limits.stall_timeout) else {
            self.progress.wait();
            return Poll::Pending;
        };
        let count = read.inspect_err(|error| self.note_timeout(error))?;
        self.end_wait();
        self.charge(count);
        self.note_progress(count)?;
        Poll::Ready(Ok(count))
    }

    fn note_timeout(&self, error: &io::Error) {
        if error.kind() == io::ErrorKind::TimedOut {
            self.limits.count_slow();
        }
    }

    /// Records that bytes of a body were transferred. Errors: `TimedOut` if the client is slower than the minimum rate.
    fn note_progress(&mut self, count: usize) -> io::Result<()> {
        if self.progress.moved(count as u64, &self.limits) {
            return Ok(());
        }
        self.limits.count_slow();
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Ends the current wait, so that the next read starts a new wait.
    pub(crate) fn end_wait(&mut self) {
        self.patience.end();
    }

    /// Reads more bytes and appends them to the bytes read ahead. Returns 0 at the end of the stream. The wait begins
    /// with the first call after [`BufferedSocket::end_wait`], and may last for `timeout`. Errors: `TimedOut`.
    pub(crate) fn poll_ahead(
        &mut self,
        context: &mut Context<'_>,
        timeout: Duration,
    ) -> Poll<io::Result<usize>> {
        if self.ahead.capacity() == 0 {
            self.ahead = take_buffer();
        }
        if self.used > 0 {
            self.ahead.drain(..self.used);
            self.used = 0;
        }
        self.ahead.reserve(READ_BYTES);
        let mut room = (&mut self.ahead).limit(READ_BYTES);
        let read = pin!(self.stream.read_buf(&mut room)).poll(context);
        if read.is_pending() && self.ahead.is_empty() {
            self.release();
        }
        if let Poll::Ready(read) = read {
            return Poll::Ready(read);
        }
        ready!(self.patience.poll_over(context, timeout));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Reads into `memory`; all bytes read ahead must have been used. Errors: `TimedOut` if the client has sent nothing
    /// for the stall timeout, or is slower than the minimum rate.
    pub(crate) fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        memory: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.timed(context, |stream, context| {
            let mut room = ReadBuf::new(memory);
            ready!(Pin::new(stream).poll_read(context, &mut room))?;
            Poll::Ready(Ok(room.filled().len()))
        })
    }

    /// Runs an operation on the socket; the operation returns the number of transferred bytes. Errors: `TimedOut` if
    /// the operation has to wait longer than the stall timeout, or if the client is slower than the minimum rate;
    /// errors from the operation.
    fn timed(
        &mut self,
        context: &mut Context<'_>,
        operation: impl FnOnce(&mut ClientSocket, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(done) = operation(&mut self.stream, context) {
            self.patience.end();
            let count = done?;
            self.charge(count);
            self.note_progress(count)?;
            return Poll::Ready(Ok(count));
        }
        self.progress.wait();
        ready!(self.patience.poll_over(context, self.limits.stall_timeout));
        self.limits.count_slow();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Returns the socket and the unused bytes that were read from it, for another protocol driver.
    pub(crate) fn into_parts(mut self) -> (ClientSocket, Vec<u8>) {
        self.ahead.drain(..self.used);
        (self.stream, self.ahead)
    }

    /// Sends all of `data`. Errors: `TimedOut` and errors from the socket.
    pub(crate) async fn send(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            self.pause().await;
            let write = |context: &mut Context<'_>| {
                self.timed(context, |stream, context| Pin::new(stream).poll_write(context, data))
            };
            data = &data[poll_fn(write).await?..];
        }
        self.flush().await
    }

    /// Flushes the TLS stream, which keeps bytes in this process while the socket's buffer is full.
    async fn flush(&mut self) -> io::Result<()> {
        if !self.stream.is_encrypted() {
            return Ok(());
        }
        let flush = |stream: &mut ClientSocket, context: &mut Context<'_>| {
            Pin::new(stream).poll_flush(context).map_ok(|()| 0)
        };
        poll_fn(|context| self.timed(context, flush)).await.map(drop)
    }

    /// Sends all of `first` and then all of `second`, in one segment if they fit.
    pub(crate) async fn send_both(&mut self, first: &[u8], second: &[u8]) -> io::Result<()> {
        let pieces = [io::IoSlice::new(first), io::IoSlice::new(second)];
        let write = |context: &mut Context<'_>| {
            self.timed(context, |stream, context| Pin::new(stream).poll_write_vectored(context, &pieces))
        };
        let sent = poll_fn(write).await?;
        self.send(&first[sent.min(first.len())..]).await?;
        self.send(&second[sent.saturating_sub(first.len())..]).await
    }

    /// Sends `head`, and tells the kernel to wait for more data before it sends a partial segment.
    pub(crate) async fn send_before_file(&mut self, mut head: &[u8]) -> io::Result<()> {
        if self.stream.is_encrypted() {
            return self.send(head).await;
        }
        while !head.is_empty() {
            let sent = self.when_writable(head.len(), |stream| fordway_sys::send_more(stream, head)).await?;
            head = &head[sent..];
        }
        Ok(())
    }

    /// Sends `range` of a file from the page cache. Parts that are not in memory are read on a thread that may block.
    /// Errors: `UnexpectedEof` if the file is too short; `TimedOut`; errors from the socket.
    pub(crate) async fn send_file(&mut self, file: &File, mut range: Range<u64>) -> io::Result<()> {
        let (mut turn_bytes, mut cached_until) = (0, range.start);
        while !range.is_empty() {
            self.pause().await;
            if cached_until <= range.start && !self.stream.is_encrypted() {
                cached_until = find_cached(file, &range)?;
            }
            let sent = match self.stream.is_encrypted() {
                true => self.send_piece(file, &range).await?,
                false if cached_until > range.start => {
                    self.send_cached(file, range.start..cached_until).await?
                }
                false => self.send_waiting(file, &range).await?,
            };
            range.start += sent;
            turn_bytes += sent;
            if turn_bytes >= TURN_BYTES {
                turn_bytes = 0;
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Reads one piece of a file into memory and sends it, because TLS encrypts the data in this process.
    async fn send_piece(&mut self, file: &File, range: &Range<u64>) -> io::Result<u64> {
        let end = range.end.min(range.start + PIECE_BYTES);
        self.send(&read_piece(file, range.start..end).await?).await?;
        Ok(end - range.start)
    }

    async fn send_cached(&mut self, file: &File, range: Range<u64>) -> io::Result<u64> {
        let (offset, len) = (range.start, (range.end - range.start) as usize);
        let send = |stream: BorrowedFd<'_>| fordway_sys::send_file(stream, file, offset, len);
        let sent = self.when_writable(len, send).await?;
        if sent == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(sent as u64)
    }

    async fn send_waiting(&mut self, file: &File, range: &Range<u64>) -> io::Result<u64> {
        let len = (range.end - range.start).min(CHUNK_BYTES as u64) as usize;
        self.send(&read_elsewhere(file, range.start, len).await?).await?;
        Ok(len as u64)
    }

    /// Calls `send` for up to `len` bytes as soon as the socket is writable. The socket must not use TLS.
    async fn when_writable(
        &mut self,
        len: usize,
        send: impl Fn(BorrowedFd<'_>) -> Result<usize, fordway_sys::Errno>,
    ) -> io::Result<usize> {
        let attempt = |stream: &mut ClientSocket, context: &mut Context<'_>| {
            stream.poll_send(context, len, |socket| send(socket).map_err(io::Error::from))
        };
        poll_fn(|context| self.timed(context, attempt)).await
    }

    /// Sends the rest of `data`, whose first `sent` bytes have already been sent. Errors: `TimedOut` and errors from
    /// the socket.
    pub(crate) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        data: &[u8],
        sent: &mut usize,
    ) -> Poll<io::Result<()>> {
        let done = self.timed(context, |stream, context| {
            while *sent < data.len() {
                *sent += ready!(Pin::new(&mut *stream).poll_write(context, &data[*sent..]))?;
            }
            Pin::new(stream).poll_flush(context).map_ok(|()| data.len())
        });
        done.map_ok(drop)
    }

    /// Ends the connection; with TLS, sends `close_notify` first.
    pub(crate) async fn close(mut self) {
        if self.stream.is_encrypted() {
            // A failure is ignored, because it means that the client is gone.
            let _ = tokio::time::timeout(LINGER, self.stream.shutdown()).await;
        }
    }

    /// Closes the connection after the client has had time to read the response. If the connection were closed while
    /// the client is still sending, the kernel's reset could make the client lose the response.
    pub(crate) async fn close_after_answer(mut self) {
        if self.stream.shutdown().await.is_err() {
            return;
        }
        let mut sink = BufferChunk::new();
        let discard = async { while self.stream.read(sink.memory()).await.is_ok_and(|count| count > 0) {} };
        // A client that is still sending after `LINGER` may lose the response.
        let _ = tokio::time::timeout(LINGER, discard).await;
    }
}

/// Probes single bytes of the file to find the first part of `range` that is in the page cache. Returns the end of this
/// part, which is at most `TURN_BYTES` after the start of `range`.
fn find_cached(file: &File, range: &Range<u64>) -> io::Result<u64> {
    let end = range.end.min(range.start + TURN_BYTES);
    let mut until = range.start;
    if !fordway_sys::is_cached(file, until)? {
        return Ok(until);
    }
    while until < end {
        let next = end.min(until + PROBE_BYTES);
        if !fordway_sys::is_cached(file, next - 1)? {
            break;
        }
        until = next;
    }
    Ok(until)
}
