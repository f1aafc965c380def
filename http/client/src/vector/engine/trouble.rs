//! What is done when something goes wrong on the way: a connection that ends or is silent, a place that the
//! bytes have left, a batch that is late.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind, Result};

use super::Engine;
use crate::vector::batch::Batch;
use crate::vector::learned::Learned;
#[cfg(feature = "http2")]
use crate::vector::line::End;
use crate::vector::line::Line;
use crate::vector::redirect::{HOPS_MAX, Moved};
use crate::vector::request::{BatchId, Request};
use crate::vector::sink::Sink;
use crate::vector::source::Place;

impl<S: Sink> Engine<S> {
    /// Ends batches whose deadline has passed, and the connections on which they are under way.
    pub(super) fn end_late_batches(&mut self) {
        let now = Instant::now();
        let is_late = |batch: &Batch<S>| !batch.has_ended() && batch.until.is_some_and(|until| until <= now);
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

    pub(super) fn deadline(&self, line: &Line) -> Option<Instant> {
        line.deadline(&self.place.session.options, &self.server)
    }

    pub(super) fn give_up_late_lines(&mut self) {
        let (now, timeouts) = (Instant::now(), self.place.session.options.timeouts);
        let late_line = |engine: &Self| {
            let is_late = |line| engine.deadline(line).is_some_and(|deadline| deadline <= now);
            engine.lines.iter().position(is_late)
        };
        while let Some(index) = late_line(self) {
            let is_left = self.lines[index].may_be_left();
            if is_left && !self.server.has_pipelined {
                self.server = self.place.learn(Learned::pipeline_left);
                self.close(index);
                continue;
            }
            if is_left {
                self.place.learn(Learned::pipeline_forgotten);
            }
            let detail = format!("nothing arrived for {:?}", timeouts.progress.min(timeouts.first_byte));
            self.broken(index, Error::new(ErrorKind::Timeout, detail));
        }
    }

    /// The bytes are elsewhere: what is missing is asked for there.
    pub(super) fn moved(&mut self, concerned: &[BatchId], moved: &Moved) {
        self.release();
        self.moves += 1;
        let has_bytes = self.delivered_bytes() > 0;
        let followed = match self.moves {
            ..=HOPS_MAX => self.source.follow(&self.place, moved, has_bytes),
            _ => Err(Error::new(
                ErrorKind::BadResponse,
                "reads are redirected again and again without an answer",
            )),
        };
        self.go_on_at(followed, concerned);
    }

    /// A refusal for good. Where another address had led here, that is asked again, once until bytes come.
    pub(super) fn denied(&mut self, index: usize, concerned: BatchId, error: Error) {
        if self.has_asked_again || !self.source.may_be_elsewhere(&self.place, &error) {
            self.fail(&[concerned], error);
            return self.close_if_spent(index);
        }
        self.has_asked_again = true;
        self.release();
        self.go_on_at(self.source.ask_again(&self.place), &[concerned]);
    }

    fn go_on_at(&mut self, found: Result<Arc<Place>>, concerned: &[BatchId]) {
        match found {
            Ok(place) => {
                self.server = place.learned();
                self.place = place;
            }
            Err(error) => self.fail(concerned, error),
        }
    }

    /// A connection ended that should not have.
    pub(super) fn broken(&mut self, index: usize, error: Error) {
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

    /// Holds an end of the connection against pipelining where it came behind the first answer.
    pub(super) fn note_cut(&self, index: usize) {
        if self.lines[index].ends_early() {
            self.place.learn(Learned::pipeline_cut);
        }
    }

    /// A stream ended before its answer did; the connection goes on.
    #[cfg(feature = "http2")]
    pub(super) fn ended(&mut self, index: usize, request: &Request, end: End) {
        self.take_back(request);
        match end {
            End::Whole => {
                let asked = request.spans.len();
                self.server = self.place.learn(|server| server.list_refused(asked));
            }
            End::Unneeded => {}
            End::Failed(error) if error.kind() == ErrorKind::PreconditionFailed => {
                self.fail(&[request.batch], error);
            }
            End::Failed(error) => self.failed_with(request, error, None),
        }
        self.close_if_spent(index);
    }

    /// Counts the failure of one request; requests that were sent before it failed count as the same failure.
    pub(super) fn failed_with(&mut self, request: &Request, error: Error, retry_after: Option<Duration>) {
        if self.failed_at.is_none_or(|failed| failed < request.sent) {
            self.failed_at = Some(Instant::now());
            self.failed(error, &[request.batch], retry_after);
        }
    }

    /// Counts a failure that may pass: all is asked for again after a while, but not for ever.
    pub(super) fn failed(&mut self, error: Error, concerned: &[BatchId], retry_after: Option<Duration>) {
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

    /// Gives batches up.
    pub(super) fn fail(&mut self, concerned: &[BatchId], error: Error) {
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
