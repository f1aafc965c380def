//! Counts what many threads did, and remembers how the first failure ends the command.

use std::sync::Mutex;

use fordway_command::{Context, Exit};
use fordway_store::{Error, ErrorKind, Result};

#[derive(Default)]
pub(crate) struct Tally(Mutex<Counts>);

#[derive(Clone, Copy, Default)]
struct Counts {
    done: u64,
    skipped: u64,
    failed: u64,
    first_failure: Option<Exit>,
}

impl Tally {
    fn change(&self, change: impl FnOnce(&mut Counts)) -> Counts {
        let mut counts = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut counts);
        *counts
    }

    pub(crate) fn done(&self) {
        self.change(|counts| counts.done += 1);
    }

    pub(crate) fn skipped(&self) {
        self.change(|counts| counts.skipped += 1);
    }

    /// Reports `error`, unless it only says that all work stops.
    pub(crate) fn failed(&self, context: &Context, error: &Error) {
        if error.kind() == ErrorKind::Interrupted {
            return;
        }
        context.output.error(error);
        self.change(|counts| {
            counts.failed += 1;
            counts.first_failure.get_or_insert(Exit::of(error));
        });
    }

    /// Whether anything failed so far.
    pub(crate) fn has_failed(&self) -> bool {
        self.change(|_| {}).failed > 0
    }

    /// Tells how it went, where that is not plain from what was reported. Errors: `Interrupted`.
    pub(crate) fn finish(&self, context: &Context) -> Result<Exit> {
        let Counts { done, skipped, failed, first_failure } = self.change(|_| {});
        if context.interrupt.is_raised() {
            let why = format!("stopped by a signal after {done} objects; what was not finished was removed");
            return Err(Error::new(ErrorKind::Interrupted, why));
        }
        if failed > 0 && failed + done + skipped > 1 {
            let total = failed + done + skipped;
            context.output.note(&format!("{failed} of {total} failed, {done} done, {skipped} skipped"));
        }
        Ok(first_failure.unwrap_or(Exit::Ok))
    }
}
