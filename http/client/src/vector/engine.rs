//! Executes batches: turns their missing bytes into requests, and keeps connections busy. When a server does not
//! support a method, the engine falls back to the next one. The methods are lists of ranges, single ranges in a
//! pipeline, single ranges on several connections, and the whole file, in this order. The engine decides how many
//! connections are used and which connection gets the next request. The engine also handles failures: a connection that
//! ends or stalls, a file that has moved, a batch that exceeds its deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};
use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

use super::batch::FragmentBatch;
use super::content::UnsuccessfulResponse;
use super::learned::ServerProfile;
use super::line::{ActiveConnection, AnsweredRequest, GATHERING_TIME, RangeRequestOutcome};
use super::open::{UnconsumedResponse, is_passing};
use super::redirect::RedirectResponse;
use super::request::{BatchId, RangeRequest, SpanQueue};
use super::sink::FragmentSink;
use super::source::{RemoteFileSource, SourceLocation, changed};
use crate::retry::RetryBudget;
#[cfg(feature = "http2")]
use crate::vector::line::StreamEndReason;
use crate::vector::redirect::HOPS_MAX;

/// Batches in flight, which have exclusive use of their connections.
pub(super) struct BatchEngine<S: FragmentSink> {
    source: Arc<RemoteFileSource>,
    /// The location from which the file is read. The source may have changed its location since the engine last
    /// checked.
    place: Arc<SourceLocation>,
    server: ServerProfile,
    batches: BTreeMap<BatchId, FragmentBatch<S>>,
    queue: SpanQueue,
    lines: Vec<ActiveConnection>,
    in_flight_bytes: u64,
    /// The retry budget, which counts consecutive failures with almost no bytes arriving in between.
    retries: RetryBudget,
    /// The number of consecutive redirections with no bytes arriving in between.
    moves: usize,
    /// Whether the file has been located again and no bytes have arrived since then.
    has_asked_again: bool,
    /// Whether a list of ranges was refused with status 403. The refusal may concern the list or the file, so single
    /// ranges are tried next.
    doubts_lists: bool,
    delivered_at_failure: u64,
    /// The number of bytes delivered for batches that have since been taken or cancelled.
    delivered_before: u64,
    not_before: Option<Instant>,
    /// The time of the last failure of a request. A failure of a request that was sent before this time is not counted.
    failed_at: Option<Instant>,
}

impl<S: FragmentSink> BatchEngine<S> {
    pub(super) fn new(source: Arc<RemoteFileSource>) -> Self {
        let place = source.place();
        BatchEngine {
            server: place.learned(),
            retries: RetryBudget::new(place.session.options.max_retries, None),
            place,
            source,
            batches: BTreeMap::new(),
            queue: SpanQueue::default(),
            lines: Vec::new(),
            in_flight_bytes: 0,
            moves: 0,
            has_asked_again: false,
            doubts_lists: false,
            delivered_at_failure: 0,
            delivered_before: 0,
            not_before: None,
            failed_at: None,
        }
    }

    /// Adds a batch. Sends nothing yet.
    pub(super) fn add(&mut self, id: BatchId, mut batch: FragmentBatch<S>) {
        batch.until = self.place.session.until();
        self.queue.push(id, batch.missing(&(0..u64::MAX)));
        self.batches.insert(id, batch);
    }

    /// Adds a batch whose first response is already arriving.
    pub(super) fn begin(&mut self, id: BatchId, mut batch: FragmentBatch<S>, begun: UnconsumedResponse) {
        let UnconsumedResponse { mut request, connection, permit } = begun;
        let asked_until = request.spans.last().map_or(0, |span| span.end);
        request.batch = id;
        batch.requests += 1;
        batch.until = self.place.session.until();
        self.in_flight_bytes += request.bytes;
        self.lines.push(ActiveConnection::begun(connection, permit, request));
        self.queue.push(id, batch.missing(&(asked_until..u64::MAX)));
        self.batches.insert(id, batch);
    }

    /// Returns whether this batch has been added and not yet taken.
    pub(super) fn has(&self, id: BatchId) -> bool {
        self.batches.contains_key(&id)
    }

    /// Removes and returns the batches that have ended.
    pub(super) fn take_ended(&mut self) -> Vec<(BatchId, Result<S>)> {
        let ended: Vec<_> = self.batches.extract_if(.., |_, batch| batch.is_settled()).collect();
        self.delivered_before += ended.iter().map(|(_, batch)| batch.delivered_bytes()).sum::<u64>();
        ended.into_iter().map(|(id, batch)| (id, batch.into_result())).collect()
    }

    /// Returns whether the engine has no batch and uses no connection.
    pub(super) fn is_idle(&self) -> bool {
        self.batches.is_empty() && self.lines.is_empty()
    }

    /// Cancels a batch: nothing is written to its memory any longer. The next call of [`BatchEngine::turn`] closes the
    /// connections that carry requests for the batch. If no other batch is in progress, the connections are closed
    /// immediately.
    pub(super) fn cancel(&mut self, id: BatchId) {
        self.queue.forget(id);
        if let Some((id, batch)) = self.batches.remove_entry(&id) {
            // The memory of the batch is returned now, before its connections are closed.
            let mut cancelled = BTreeMap::from([(id, batch)]);
            self.lines.iter_mut().for_each(|line| line.lose_unconfirmed(&mut cancelled));
            self.delivered_before += cancelled.values().map(FragmentBatch::delivered_bytes).sum::<u64>();
        }
        if self.batches.values().all(FragmentBatch::is_settled) {
            self.release();
        }
    }

    /// Cancels all batches.
    pub(super) fn cancel_all(&mut self) {
        while let Some(id) = self.batches.keys().next().copied() {
            self.cancel(id);
        }
    }

    /// Receives and sends as much as possible without blocking; returns whether another call may make progress
    /// immediately.
    pub(super) fn turn(&mut self) -> bool {
        let has_events = self.receive();
        let goes_on = self.send() || has_events;
        if self.batches.values().all(FragmentBatch::is_settled) {
            self.release();
        }
        goes_on
    }

    /// Waits until a connection or `also` is ready, a timeout has passed, or `limit` is reached. Returns whether `also`
    /// is ready.
    pub(super) fn wait(&mut self, also: Option<PollFd<'_>>, limit: Option<Instant>) -> bool {
        let has_also = also.is_some();
        let gathers = self.lines.iter_mut().fold(false, |any, line| line.gather() | any);
        let look = gathers.then(|| Instant::now() + GATHERING_TIME);
        let deadlines = self.lines.iter().filter_map(|line| self.deadline(line));
        let ends = self.batches.values().filter(|batch| !batch.has_ended()).filter_map(|batch| batch.until);
        let until = deadlines.chain(self.not_before).chain(ends).chain(limit).chain(look).min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = fordway_sys::wait_at_most(left.unwrap_or(Duration::MAX));
        let left = Timespec::try_from(left).ok();
        let mut polled: Vec<PollFd<'_>> =
            self.lines.iter().map(|line| PollFd::new(line, line.interest())).chain(also).collect();
        // `poll` fails only on a signal or for lack of memory. After either failure, all connections and deadlines are
        // checked as usual.
        let ready = poll(&mut polled, left.as_ref());
        let is_also = has_also && polled.pop().is_some_and(|also| !also.revents().is_empty());
        drop(polled);
        if matches!(ready, Ok(0) | Err(Errno::INTR)) && fordway_sys::after_signal().is_err() {
            self.stop();
        }
        // Data that arrived during the wait is in time, no matter how late it is processed. If a connection waits for
        // many bytes, the arrival of a few bytes does not end the wait, so all connections must be read before any of
        // them is considered late.
        if ready.unwrap_or(0) == 0 && !gathers && until.is_some_and(|until| until <= Instant::now()) {
            self.give_up_late_lines();
        }
        self.end_late_batches();
        is_also
    }

    /// Receives on all connections; returns whether there were events other than received bytes.
    fn receive(&mut self) -> bool {
        let (mut goes_on, mut index) = (false, 0);
        while index < self.lines.len() {
            let event = self.lines[index].advance(&mut self.batches, &self.place.version);
            if !self.server.ignores_ranges && self.lines[index].ignores_range(&self.place.version) {
                // The head alone shows that the server ignores ranges. Record this now, so that no further ranges are
                // requested before the response ends.
                self.server = self.place.learn(ServerProfile::range_ignored);
            }
            match event {
                RangeRequestOutcome::Pending => index += 1,
                event => {
                    goes_on = true;
                    self.handle(index, event);
                }
            }
        }
        goes_on
    }

    fn handle(&mut self, index: usize, event: RangeRequestOutcome) {
        match event {
            RangeRequestOutcome::Answered(answered) => self.answered(index, &answered),
            RangeRequestOutcome::Refused(request, refusal) => self.refused(index, &request, refusal),
            RangeRequestOutcome::Whole { asked } => {
                self.server = self.place.learn(|server| server.list_refused(asked));
                self.close(index);
            }
            RangeRequestOutcome::Useless => drop(self.close(index)),
            #[cfg(feature = "http2")]
            RangeRequestOutcome::Ended(request, end) => self.ended(index, &request, end),
            RangeRequestOutcome::Broken(error) => self.broken(index, error),
            RangeRequestOutcome::Forbidden(error) => {
                let concerned = self.close(index);
                self.fail(&concerned, error);
            }
            RangeRequestOutcome::Pending => {}
        }
    }

    fn answered(&mut self, index: usize, answered: &AnsweredRequest) {
        let AnsweredRequest { request, ranges, new_bytes, was_whole } = answered;
        if *new_bytes > 0 {
            (self.moves, self.has_asked_again) = (0, false);
            self.retries.achieved();
            self.source.is_begun.store(true, Ordering::Relaxed);
        }
        let (asked, is_short) = (request.spans.len(), self.take_back(request));
        let doubts_lists = asked == 1 && std::mem::take(&mut self.doubts_lists);
        self.server = self.place.learn(|server| {
            if let (Some(wait), false) = (request.waited, request.is_pipelined) {
                server.answered(wait, request.bytes, request.sent.elapsed().saturating_sub(wait));
            }
            match () {
                () if *was_whole && asked > 1 => server.list_refused(asked),
                () if *was_whole && request.bytes < self.place.version.size_bytes => server.range_ignored(),
                () if is_short && asked > 1 => server.list_cut(asked, *ranges),
                () if doubts_lists => server.lists_refused(),
                () if request.is_pipelined => server.pipeline_kept(request.came_along),
                () => {}
            }
        });
        if is_short && *new_bytes == 0 {
            let detail = "the server sent a different range from the one requested";
            self.failed(Error::new(ErrorKind::BadResponse, detail), &[request.batch], None);
        }
        self.close_if_spent(index);
    }

    fn refused(&mut self, index: usize, request: &RangeRequest, refusal: UnsuccessfulResponse) {
        let (asked, list_bytes) = (request.spans.len(), request.list_bytes);
        self.take_back(request);
        let UnsuccessfulResponse { status, retry_after, location, document } = refusal;
        if let Some(moved) = RedirectResponse::of(status, location.as_deref()) {
            return self.moved(&[request.batch], &moved);
        }
        let told = || self.place.refusal(status, location.as_deref(), &document);
        match status {
            412 => self.fail(&[request.batch], changed("HTTP status 412")),
            400 | 413 | 414 | 431 | 494 if asked > 1 => {
                self.server = self.place.learn(|server| server.head_refused(asked, list_bytes));
            }
            416 | 501 if asked > 1 => {
                self.server = self.place.learn(ServerProfile::lists_refused);
            }
            // Some firewalls refuse lists with status 403. If a redirection led to this location, however, the location
            // may have expired.
            403 if asked > 1 && !self.source.may_be_elsewhere(&self.place, &told()) => {
                self.doubts_lists = true;
            }
            408 | 429 | 500 | 502..=504 => self.failed_with(request, told(), retry_after),
            _ => match told() {
                error if is_passing(error.kind()) => self.failed_with(request, error, retry_after),
                error => return self.denied(index, request.batch, error),
            },
        }
        self.close_if_spent(index);
    }

    fn close_if_spent(&mut self, index: usize) {
        if self.lines[index].is_spent() {
            self.note_cut(index);
            self.close(index);
        }
    }

    /// Stops using a connection, and queues the spans of its unanswered requests again. Returns the batches concerned.
    fn close(&mut self, index: usize) -> Vec<BatchId> {
        let place = self.place.clone();
        let mut line = self.lines.swap_remove(index);
        line.lose_unconfirmed(&mut self.batches);
        let keep = |connection| place.session.http.keep(place.target.origin(), connection);
        let requests = line.close(keep);
        for request in requests.iter().rev() {
            self.take_back(request);
        }
        self.server = self.place.learned();
        requests.iter().map(|request| request.batch).collect()
    }

    fn release(&mut self) {
        while !self.lines.is_empty() {
            self.close(self.lines.len() - 1);
        }
    }

    /// Queues the bytes that a finished request did not deliver. Returns whether there are undelivered bytes.
    fn take_back(&mut self, request: &RangeRequest) -> bool {
        self.in_flight_bytes -= request.bytes;
        let Some(batch) = self.batches.get_mut(&request.batch) else { return false };
        batch.requests -= 1;
        if batch.has_ended() {
            return false;
        }
        let missing: Vec<_> = request.spans.iter().flat_map(|span| batch.missing(span)).collect();
        let is_short = !missing.is_empty();
        self.queue.put_back(request.batch, missing);
        is_short
    }

    fn delivered_bytes(&self) -> u64 {
        self.delivered_before + self.batches.values().map(FragmentBatch::delivered_bytes).sum::<u64>()
    }

    /// Sends as much as the window and the server allow. Returns whether a connection broke; its requests may then be
    /// waiting for another connection.
    fn send(&mut self) -> bool {
        if self.not_before.take_if(|until| *until <= Instant::now()).is_none() && self.not_before.is_some() {
            return false;
        }
        let window_bytes = self.place.session.options.window_bytes;
        while !self.queue.is_empty() && (self.in_flight_bytes == 0 || self.in_flight_bytes < window_bytes) {
            match self.line_for_next() {
                Ok(Some(index)) => self.push_next(index, window_bytes.saturating_sub(self.in_flight_bytes)),
                Ok(None) => break,
                Err(error) => {
                    let concerned: Vec<_> = self.batches.keys().copied().collect();
                    self.failed(error, &concerned, None);
                    break;
                }
            }
        }
        let (mut has_broken, mut index) = (false, 0);
        while index < self.lines.len() {
            match self.lines[index].flush() {
                Ok(()) => index += 1,
                Err(error) => {
                    has_broken = true;
                    self.broken(index, error);
                }
            }
        }
        has_broken
    }

    fn push_next(&mut self, index: usize, room_bytes: u64) {
        if self.doubts_lists {
            self.server.ranges_per_request = 1;
        }
        let Some((request, list)) = self.queue.next(&self.server, room_bytes) else { return };
        let target = &self.place.target;
        let range = ("range", std::str::from_utf8(list).unwrap_or_default());
        let condition = self.place.version.condition(target.pin());
        let headers = [range, condition.unwrap_or_default()];
        let headers = &headers[..1 + usize::from(condition.is_some())];
        self.in_flight_bytes += request.bytes;
        if let Some(batch) = self.batches.get_mut(&request.batch) {
            batch.requests += 1;
        }
        self.lines[index].push(request, |head| target.write_head("GET", headers, head));
        self.source.traffic.requests.fetch_add(1, Ordering::Relaxed);
    }
}

impl<S: FragmentSink> Drop for BatchEngine<S> {
    /// Returns idle connections to the pool.
    fn drop(&mut self) {
        for mut line in self.lines.drain(..) {
            // A cancelled job keeps the bytes that have arrived, so mark bytes as missing that may not be content.
            line.lose_unconfirmed(&mut self.batches);
            line.close(|connection| {
                self.place.session.http.keep(self.place.target.origin(), connection);
            });
        }
    }
}

impl<S: FragmentSink> BatchEngine<S> {
    /// Returns the connection for the next request, which may be a new connection; `None` if the request must wait for
    /// a response. Errors: `Unavailable`, `Timeout`, `InvalidArgument`.
    fn line_for_next(&mut self) -> Result<Option<usize>> {
        let open = self.lines.iter().enumerate().filter(|(_, line)| line.is_open());
        let count = open.clone().count();
        let least = open.min_by_key(|(_, line)| line.depth());
        let least = least.filter(|(_, line)| line.depth() < line.depth_max(&self.server));
        match least.map(|(index, line)| (index, line.depth())) {
            Some((index, 0)) => Ok(Some(index)),
            Some((index, _)) if count >= self.lines_wanted() => Ok(Some(index)),
            None if count > 0 && count >= self.lines_wanted() => Ok(None),
            least => Ok(self.open()?.or(least.map(|(index, _)| index))),
        }
    }

    /// Returns the desired number of connections; a few fully used connections are better than many underused ones.
    fn lines_wanted(&self) -> usize {
        let cap = self.place.session.options.connections_per_origin;
        let ServerProfile { pipelines, ranges_per_request, ignores_ranges, .. } = self.server;
        match (pipelines, ranges_per_request) {
            _ if ignores_ranges => 1,
            (true, 2..) => 1,
            (true, _) => {
                let each = self.lines.first().map_or(1, ActiveConnection::ranges_each);
                self.queue.len().div_ceil(each).clamp(1, cap.max(1))
            }
            (false, _) => self.server.requests_for(self.queue.len()).clamp(1, cap.max(1)),
        }
    }

    /// Opens one more connection, or takes one from the pool; `None` if the maximum number of connections is in use.
    fn open(&mut self) -> Result<Option<usize>> {
        let (session, origin) = (&self.place.session, self.place.target.origin());
        let permit = match self.lines.is_empty() {
            true => session.permit(origin)?,
            false => match session.try_permit(origin) {
                Some(permit) => permit,
                None => return Ok(None),
            },
        };
        let (connection, is_new) = session.connection(origin)?;
        self.source.traffic.connections.fetch_add(u64::from(is_new), Ordering::Relaxed);
        self.lines.push(ActiveConnection::new(connection, permit));
        Ok(Some(self.lines.len() - 1))
    }
}

impl<S: FragmentSink> BatchEngine<S> {
    /// Fails batches whose deadline has passed, and closes the connections that carry them.
    fn end_late_batches(&mut self) {
        let now = Instant::now();
        let is_late =
            |batch: &FragmentBatch<S>| !batch.has_ended() && batch.until.is_some_and(|until| until <= now);
        let late: Vec<_> =
            self.batches.iter().filter(|(_, batch)| is_late(batch)).map(|(id, _)| *id).collect();
        if late.is_empty() {
            return;
        }
        let deadline = self.place.session.options.deadline.unwrap_or_default();
        let error =
            self.retries.last(Error::new(ErrorKind::Timeout, format!("not done within {deadline:?}")));
        self.fail(&late, error);
        while let Some(index) = self.lines.iter().position(|line| line.carries(&late)) {
            self.close(index);
        }
    }

    /// Fails all batches, because the program must stop after a signal.
    fn stop(&mut self) {
        let all: Vec<_> = self.batches.keys().copied().collect();
        self.fail(&all, Error::new(ErrorKind::Interrupted, "a signal interrupted the wait"));
        while let Some(index) = self.lines.iter().position(|line| line.carries(&all)) {
            self.close(index);
        }
    }

    fn deadline(&self, line: &ActiveConnection) -> Option<Instant> {
        line.deadline(&self.place.session.options, &self.server)
    }

    fn give_up_late_lines(&mut self) {
        let (now, timeouts) = (Instant::now(), self.place.session.options.timeouts);
        let late_line = |engine: &Self| {
            let is_late = |line| engine.deadline(line).is_some_and(|deadline| deadline <= now);
            engine.lines.iter().position(is_late)
        };
        while let Some(index) = late_line(self) {
            let is_left = self.lines[index].may_be_left();
            if is_left && !self.server.has_pipelined {
                self.server = self.place.learn(ServerProfile::pipeline_left);
                self.close(index);
                continue;
            }
            if is_left {
                self.place.learn(ServerProfile::pipeline_forgotten);
            }
            let detail = format!("nothing arrived for {:?}", timeouts.progress.min(timeouts.first_byte));
            self.broken(index, Error::new(ErrorKind::Timeout, detail));
        }
    }

    /// Follows the redirection of a file that has moved, so that missing bytes are requested at the new location.
    fn moved(&mut self, concerned: &[BatchId], moved: &RedirectResponse) {
        self.release();
        self.moves += 1;
        let has_bytes = self.delivered_bytes() > 0;
        let followed = match self.moves {
            ..=HOPS_MAX => self.source.follow(&self.place, moved, has_bytes),
            _ => {
                Err(Error::new(ErrorKind::BadResponse, "reads are redirected repeatedly without a response"))
            }
        };
        self.go_on_at(followed, concerned);
    }

    /// Fails the batch after a permanent refusal. However, if a redirection led to this location, first tries the
    /// original URL again, but only once until more bytes arrive.
    fn denied(&mut self, index: usize, concerned: BatchId, error: Error) {
        if std::mem::take(&mut self.doubts_lists) {
            self.server = self.place.learned();
        }
        if self.has_asked_again || !self.source.may_be_elsewhere(&self.place, &error) {
            self.fail(&[concerned], error);
            return self.close_if_spent(index);
        }
        self.has_asked_again = true;
        self.release();
        self.go_on_at(self.source.ask_again(&self.place), &[concerned]);
    }

    fn go_on_at(&mut self, found: Result<Arc<SourceLocation>>, concerned: &[BatchId]) {
        match found {
            Ok(place) => {
                self.server = place.learned();
                self.place = place;
            }
            Err(error) => self.fail(concerned, error),
        }
    }

    /// Closes a connection that ended unexpectedly. Fails the batches concerned if the file has changed. Otherwise,
    /// counts a failure, unless the connection has no requests, or had been idle and was closed before a byte arrived.
    fn broken(&mut self, index: usize, error: Error) {
        let is_stale = self.lines[index].was_idle() && error.kind() != ErrorKind::Timeout;
        if error.kind() == ErrorKind::PreconditionFailed {
            let concerned = self.close(index);
            return self.fail(&concerned, error);
        }
        if !is_stale {
            self.note_cut(index);
        }
        let concerned = self.close(index);
        if !is_stale && !concerned.is_empty() {
            self.failed(error, &concerned, None);
        }
    }

    /// Records that the server may not support pipelining, if the connection ended after at most one response, with
    /// later requests in flight.
    fn note_cut(&self, index: usize) {
        if self.lines[index].ends_early() {
            self.place.learn(ServerProfile::pipeline_cut);
        }
    }

    /// Requeues the missing bytes of a stream that ended before its response was complete. The connection remains
    /// usable.
    #[cfg(feature = "http2")]
    fn ended(&mut self, index: usize, request: &RangeRequest, end: StreamEndReason) {
        self.take_back(request);
        match end {
            StreamEndReason::Whole => {
                let asked = request.spans.len();
                self.server = self.place.learn(|server| server.list_refused(asked));
            }
            StreamEndReason::Unneeded => {}
            StreamEndReason::Failed(error) if error.kind() == ErrorKind::PreconditionFailed => {
                self.fail(&[request.batch], error);
            }
            StreamEndReason::Failed(error) => self.failed_with(request, error, None),
        }
        self.close_if_spent(index);
    }

    /// Counts the failure of one request. A failure of a request that was sent before the last counted failure is not
    /// counted.
    fn failed_with(&mut self, request: &RangeRequest, error: Error, retry_after: Option<Duration>) {
        if self.failed_at.is_none_or(|failed| failed < request.sent) {
            self.failed_at = Some(Instant::now());
            self.failed(error, &[request.batch], retry_after);
        }
    }

    /// Counts a failure that may be temporary: requests all missing bytes again after a wait, a limited number of
    /// times.
    fn failed(&mut self, error: Error, concerned: &[BatchId], retry_after: Option<Duration>) {
        let delivered = self.delivered_bytes();
        let before = std::mem::replace(&mut self.delivered_at_failure, delivered);
        self.retries.brought(delivered.saturating_sub(before));
        let ends = || concerned.iter().map(|id| self.batches.get(id).and_then(|batch| batch.until));
        self.retries.until = ends().all(|until| until.is_some()).then(|| ends().flatten().max()).flatten();
        match self.retries.after(error, true, retry_after) {
            Ok(wait) => self.not_before = Some(Instant::now() + wait),
            Err(error) => self.fail(concerned, error),
        }
    }

    /// Fails the batches `concerned` that have not ended, each with this error, and drops their queued spans.
    fn fail(&mut self, concerned: &[BatchId], error: Error) {
        let (kind, detail, tries) = (error.kind(), error.detail().to_owned(), error.tries());
        let mut first = Some(error);
        for id in concerned {
            self.queue.forget(*id);
            if let Some(batch) = self.batches.get_mut(id).filter(|batch| !batch.has_ended()) {
                let other = || Error::new(kind, detail.clone()).after_tries(tries);
                batch.failure = Some(first.take().unwrap_or_else(other));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::os::fd::AsFd as _;
    use std::sync::mpsc;

    use super::*;
    use crate::vector::{Fragment, HttpSession, RemoteFile, SessionOptions};

    /// Answers one request on each connection, and keeps the connection open without reading anything else.
    fn serve_once_each(listener: &TcpListener) {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).unwrap() > 0 {}
            let answer = match head.starts_with("HEAD") {
                true => {
                    "HTTP/1.1 200 OK\r\netag: \"v\"\r\naccept-ranges: bytes\r\ncontent-length: 10\r\n\r\n"
                }
                false => {
                    "HTTP/1.1 206 Partial Content\r\netag: \"v\"\r\ncontent-range: bytes 2-5/10\r\n\
                     content-length: 4\r\n\r\n2345"
                }
            };
            stream.get_mut().write_all(answer.as_bytes()).unwrap();
            held.push(stream);
        }
    }

    /// A server may close an idle connection just before the next request is sent. After the server has closed a
    /// connection, no further event ends a wait.
    #[test]
    fn a_kept_connection_that_cannot_be_written_to_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/file", listener.local_addr().unwrap());
        std::thread::spawn(move || serve_once_each(&listener));
        let session = Arc::new(HttpSession::new(SessionOptions::default()));
        let file = RemoteFile::open(&session, &url).unwrap();
        let place = file.source.place();
        let kept = session.http.pooled_connection(place.target.origin()).expect("the connection of HEAD");
        rustix::net::shutdown(kept.socket().as_fd(), rustix::net::Shutdown::Write).unwrap();
        session.http.keep(place.target.origin(), kept);
        let (sender, read) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4];
            let result = file.read_ranges(&mut [Fragment { offset: 2, buffer: &mut buffer }]);
            sender.send((result, buffer))
        });
        let (result, buffer) = read.recv_timeout(Duration::from_secs(20)).expect("an end of the read");
        result.unwrap();
        assert_eq!(&buffer, b"2345");
    }
}
