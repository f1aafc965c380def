//! Replicas that know no ranges: one pass over the whole file, of which jobs take what they want.

use std::time::Instant;

use fordway_store::{Error, ErrorKind, Result};

use super::board::JobId;
use super::job::{Partial, Ranges};
use super::stream::{Serving, TICK};

/// A job that waits for its bytes to pass.
struct Waiting {
    job: JobId,
    ranges: Ranges,
    partial: Partial,
    /// Behind its last byte.
    end: u64,
}

impl Serving<'_> {
    /// Reads the file from its beginning for as long as jobs want what is ahead.
    /// Errors: what the replica did wrong.
    pub(super) fn sweep(&mut self) -> Result<()> {
        let (mut waiting, mut at, mut passed, mut is_over) = (None::<Waiting>, 0, 0, false);
        let file = self.file.clone();
        let mut swept = file.copy_range(0..file.size_bytes(), &mut |bytes| {
            let end = at + bytes.len() as u64;
            self.report_bytes(bytes.len() as u64);
            loop {
                if waiting.is_none() {
                    waiting = self.next_ahead(passed);
                }
                let Some(job) = waiting.as_mut().filter(|_| self.is_wanted()) else {
                    is_over = true;
                    return Err(Error::from(ErrorKind::Interrupted));
                };
                job.partial.fill(&job.ranges, at, bytes);
                if job.end > end {
                    break;
                }
                passed = job.end;
                if let Some(Waiting { job, ranges, partial, .. }) = waiting.take() {
                    self.finish(job, &ranges, partial)?;
                }
            }
            at = end;
            Ok(())
        });
        if is_over {
            swept = Ok(());
        }
        if let Some(left) = waiting {
            self.return_job(left.job, &left.ranges, None);
        }
        swept
    }

    /// The next job that begins at `at` or behind it; waited for while there may be one.
    fn next_ahead(&self, at: u64) -> Option<Waiting> {
        let mut board = self.shared.board();
        loop {
            if let Some((job, ranges)) = board.claim_ahead(self.id, at, Instant::now()) {
                let end = ranges.iter().map(|(offset, len)| offset + *len as u64).max().unwrap_or(at);
                let mut partial = Partial::new(&ranges);
                partial.sources.push(self.site);
                return Some(Waiting { job, ranges, partial, end });
            }
            let is_more_coming = board.expected_bytes > 0 && !board.has_work();
            if !is_more_coming || !board.is_serving(self.id, self.site) {
                return None;
            }
            let waited = self.shared.changed.wait_timeout(board, TICK);
            board = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    fn is_wanted(&self) -> bool {
        self.shared.board().is_serving(self.id, self.site)
    }
}
