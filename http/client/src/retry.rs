//! Retries: the maximum number of retries, and the wait before each retry.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::date;
use fordway_wire::range::digits;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);
/// The number of bytes that must arrive before the failure count is reset. Without a minimum, a server that cuts every
/// response after a few bytes would occupy the client for hours.
pub(crate) const PROGRESS_BYTES: u64 = 4 * 1024;
/// The longest wait that a server's `Retry-After` can impose on a caller without a deadline.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);
/// The message of an error that ends an operation because a server's `Retry-After` is too long.
const RETRY_AFTER_TEXT: &str = "the server requests a retry after";

/// The retries of a request while the server fetches the file, for example from tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingRetries {
    /// The maximum number of retries.
    pub max_retries: u32,
    /// The minimum wait before each retry. A longer `Retry-After` is respected up to 120 s.
    pub delay: Duration,
}

/// The retry budget of an operation: the number of failures so far, the first failure, and the deadline.
#[derive(Debug)]
pub struct RetryBudget {
    max_retries: u32,
    /// The deadline of the operation.
    pub until: Option<Instant>,
    failures: u32,
    first: Option<String>,
    /// The retries that are left while the server fetches the file.
    staging: Option<StagingRetries>,
    /// The number of bytes that have arrived since the failure count was last reset.
    brought_bytes: u64,
}

impl RetryBudget {
    /// Creates a budget of `max_retries` retries (0 for none), all of which must begin before `until`.
    pub fn new(max_retries: u32, until: Option<Instant>) -> Self {
        RetryBudget { max_retries, until, failures: 0, first: None, staging: None, brought_bytes: 0 }
    }

    /// Retries as `staging` specifies while the server fetches the file.
    pub(crate) fn while_staging(self, staging: Option<StagingRetries>) -> Self {
        RetryBudget { staging, ..self }
    }

    /// Resets the failure count after progress.
    pub fn achieved(&mut self) {
        (self.failures, self.first, self.brought_bytes) = (0, None, 0);
    }

    /// Records that `bytes` more bytes have arrived. Resets the failure count if enough bytes have arrived since the
    /// last reset.
    pub fn brought(&mut self, bytes: u64) {
        self.brought_bytes = self.brought_bytes.saturating_add(bytes);
        if self.brought_bytes >= PROGRESS_BYTES {
            self.achieved();
        }
    }

    /// Checks the deadline. Errors: `Timeout` if the deadline has passed.
    pub fn check_time(&self) -> Result<()> {
        match self.until {
            Some(until) if until <= Instant::now() => {
                Err(Error::new(ErrorKind::Timeout, "the deadline has passed"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the time to wait after a failure before the next attempt. Errors: the failure, if it is permanent, the
    /// retries are used up, or the wait would exceed the deadline (120 s if there is no deadline). The error contains
    /// the first failure and the number of attempts.
    pub fn after(&mut self, error: Error, may_pass: bool, retry_after: Option<Duration>) -> Result<Duration> {
        let is_staging = error.kind() == ErrorKind::Unavailable && error.detail().contains("HTTP status 202");
        if let Some(staging) = self.staging.as_mut().filter(|staging| is_staging && staging.max_retries > 0) {
            let wait = staging.delay.max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX));
            if self.until.is_none_or(|until| Instant::now() + wait < until) {
                staging.max_retries -= 1;
                tracing::info!(?wait, %error, "waiting for the file");
                return Ok(wait);
            }
        }
        self.failures += 1;
        let wait = backoff(self.failures).max(retry_after.unwrap_or_default());
        let left =
            self.until.map_or(RETRY_AFTER_MAX, |until| until.saturating_duration_since(Instant::now()));
        if !may_pass || self.failures > self.max_retries {
            return Err(self.last(error));
        }
        if wait >= left {
            let detail = match (retry_after, self.until) {
                (Some(wish), _) if wish >= left => {
                    let seconds = wish.as_secs().saturating_add(u64::from(wish.subsec_nanos() > 0));
                    format!("{}; {RETRY_AFTER_TEXT} {seconds}s", error.detail())
                }
                _ => format!("{}, and no time is left for another attempt", error.detail()),
            };
            return Err(self.last(error.with_detail(detail)));
        }
        tracing::debug!(failures = self.failures, ?wait, %error, "trying again");
        self.first.get_or_insert_with(|| error.detail().to_owned());
        Ok(wait)
    }

    /// Returns the failure that ends the operation, with the number of attempts and the first failure.
    pub fn last(&mut self, error: Error) -> Error {
        let tries = self.failures.max(1);
        let first = std::mem::take(&mut self.first).filter(|first| first != error.detail());
        self.failures = 0;
        let told = match first {
            Some(first) if error.detail().is_empty() => error.with_detail(format!("at first {first}")),
            Some(first) => {
                let detail = format!("{} (at first: {first})", error.detail());
                error.with_detail(detail)
            }
            None => error,
        };
        told.after_tries(tries)
    }
}

/// Returns how long to wait before attempt number `tries + 1`: a random time between half the limit and the limit,
/// which doubles with each attempt. The time is random so that clients that failed together do not retry together.
pub fn backoff(tries: u32) -> Duration {
    let doubled = FIRST.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(LONGEST);
    // Every `RandomState` hashes differently, which is random enough for jitter.
    let random = RandomState::new().hash_one(tries) as f64 / u64::MAX as f64;
    doubled.mul_f64(0.5 + 0.5 * random)
}

/// Waits before the next attempt. Errors: `Interrupted` if the program must stop after a signal.
pub fn pause(wait: Duration) -> Result<()> {
    fordway_sys::sleep(wait).map_err(|_| {
        Error::new(ErrorKind::Interrupted, "a signal interrupted the wait before the next attempt")
    })
}

/// Returns the wait that a `Retry-After` header requests: seconds, or a date. A number that does not fit into 64 bits
/// means the longest wait.
pub fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let number = text.trim();
    if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(digits(number).unwrap_or(u64::MAX)));
    }
    date::parse_http(text).map(|date| date.duration_since(now).unwrap_or_default())
}

/// Returns whether an operation failed because the server asks its clients to send fewer requests. The caller should
/// then not send any other request to this server either.
pub fn wants_pause(error: &Error) -> bool {
    let is_told = |text| error.detail().contains(text);
    error.kind() == ErrorKind::Unavailable && (is_told("HTTP status 429") || is_told(RETRY_AFTER_TEXT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_stay_bounded() {
        for (tries, least_ms, most_ms) in [(1, 25, 50), (2, 50, 100), (4, 200, 400), (40, 2500, 5000)] {
            let wait = backoff(tries);
            assert!(wait >= Duration::from_millis(least_ms) && wait <= Duration::from_millis(most_ms));
        }
    }

    fn failure(detail: &str) -> Error {
        Error::new(ErrorKind::Unavailable, detail)
    }

    #[test]
    fn the_last_failure_is_told_with_the_first() {
        let mut retries = RetryBudget::new(2, None);
        for detail in ["one", "two"] {
            retries.after(failure(detail), true, None).unwrap();
        }
        let text = retries.after(failure("three"), true, None).unwrap_err().to_string();
        assert!(text.contains("three (at first: one), after 3 tries"), "{text}");
        let mut retries = RetryBudget::new(1, None);
        retries.after(failure("same"), true, None).unwrap();
        let text = retries.after(failure("same"), true, None).unwrap_err().to_string();
        assert!(text.contains("same, after 2 tries"), "{text}");
    }

    #[test]
    fn what_does_not_pass_and_what_was_achieved_begin_anew() {
        let mut retries = RetryBudget::new(1, None);
        retries.after(failure("one"), true, None).unwrap();
        retries.achieved();
        retries.after(failure("two"), true, None).unwrap();
        assert!(retries.after(failure("three"), false, None).is_err());
        assert_eq!(RetryBudget::new(9, None).after(failure("x"), false, None).unwrap_err().tries(), 1);
    }

    #[test]
    fn a_few_bytes_at_a_time_are_no_progress() {
        let mut retries = RetryBudget::new(2, None);
        retries.brought(1);
        retries.after(failure("one"), true, None).unwrap();
        retries.brought(PROGRESS_BYTES - 2);
        retries.after(failure("two"), true, None).unwrap();
        let text = retries.after(failure("three"), true, None).unwrap_err().to_string();
        assert!(text.contains("three (at first: one), after 3 tries"), "{text}");
        let mut retries = RetryBudget::new(1, None);
        retries.after(failure("one"), true, None).unwrap();
        retries.brought(PROGRESS_BYTES / 2);
        retries.brought(PROGRESS_BYTES / 2);
        retries.after(failure("two"), true, None).unwrap();
    }

    #[test]
    fn a_servers_wish_counts_as_far_as_there_is_time() {
        let now = Instant::now();
        let wish = |seconds, until| {
            RetryBudget::new(9, until).after(failure("busy"), true, Some(Duration::from_secs(seconds)))
        };
        assert_eq!(wish(100, None).unwrap(), Duration::from_secs(100));
        assert_eq!(wish(1_000, Some(now + Duration::from_secs(2_000))).unwrap(), Duration::from_secs(1_000));
        for refused in [wish(1_000, None), wish(30, Some(now + Duration::from_secs(20)))] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains("busy; the server requests a retry after"), "{text}");
        }
        let date = Some(Duration::new(251_606_314_213, 77_054_030));
        let text = RetryBudget::new(9, None).after(failure("busy"), true, date).unwrap_err().to_string();
        assert!(text.contains("requests a retry after 251606314214s"), "{text}");
        let late = RetryBudget::new(9, Some(now)).after(failure("x"), true, None).unwrap_err();
        assert!(late.to_string().contains("no time is left"), "{late}");
    }

    #[test]
    fn a_file_that_is_staged_has_retries_of_its_own() {
        let staged = || failure("not yet (HTTP status 202)");
        let staging = StagingRetries { max_retries: 2, delay: Duration::from_secs(10) };
        let mut retries = RetryBudget::new(0, None).while_staging(Some(staging));
        assert!(retries.after(failure("busy (HTTP status 503)"), true, None).is_err());
        assert_eq!(retries.after(staged(), true, None).unwrap(), Duration::from_secs(10));
        let wish = Some(Duration::from_secs(30));
        assert_eq!(retries.after(staged(), true, wish).unwrap(), Duration::from_secs(30));
        assert!(retries.after(staged(), true, None).is_err(), "the retries are used up");
        let soon = Some(Instant::now() + Duration::from_secs(5));
        assert!(RetryBudget::new(0, soon).while_staging(Some(staging)).after(staged(), true, None).is_err());
        assert!(RetryBudget::new(1, None).after(staged(), true, None).is_ok(), "as any other failure");
    }

    #[test]
    fn servers_wish_in_seconds_or_by_date() {
        let now = date::parse_http("Fri, 24 May 2013 00:00:00 GMT").unwrap();
        let wish = |text| retry_after(text, now).map(|wish| wish.as_secs());
        assert_eq!([wish("7"), wish("Fri, 24 May 2013 00:01:05 GMT")], [Some(7), Some(65)]);
        assert_eq!([wish("Fri, 24 May 2013 00:00:00 GMT"), wish("soon"), wish("-1")], [Some(0), None, None]);
        // Numbers that do not fit into 64 bits mean the longest wait. They are not errors.
        assert_eq!([wish("99999999999999999999"), wish("+9"), wish("")], [Some(u64::MAX), None, None]);
    }
}
