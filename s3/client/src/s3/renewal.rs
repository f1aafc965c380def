//! Keys that expire. One caller at a time fetches new keys, before the current keys expire.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use fordway_store::{Error, ErrorKind, Result};
use fordway_sys::{PerProcess, after_signal, wait_at_most};

use super::S3Credentials;

/// New keys are fetched this long before the current keys expire, while other callers use the current keys. This
/// constant and [`WAIT_BEFORE`] have the same values as in botocore.
const RENEW_BEFORE: Duration = Duration::from_secs(15 * 60);
/// All callers wait for new keys this long before the current keys expire.
const WAIT_BEFORE: Duration = Duration::from_secs(10 * 60);
/// The time between a failed attempt and the next attempt, as long as the current keys are valid.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Keys, and the time at which they expire.
pub(super) struct ExpiringKeys {
    /// Always [`S3Credentials::Keys`].
    pub(super) keys: S3Credentials,
    pub(super) fetched: SystemTime,
    pub(super) expires: SystemTime,
}

/// Fetches new keys, and waits at most for the given time.
type FetchKeys = dyn Fn(Duration) -> Result<ExpiringKeys> + Send + Sync;

/// Keys that are fetched again before they expire. Clones share the keys.
#[derive(Clone)]
pub struct RenewedKeys(Arc<Renewal>);

struct Renewal {
    fetch: Box<FetchKeys>,
    /// The keys with which each process begins. A forked child renews its keys itself, because its parent's thread that
    /// fetches keys, or that has locked the state, does not exist in the child.
    first: RenewalState,
    state: PerProcess<OnceLock<Mutex<RenewalState>>>,
    /// Signalled at the end of each attempt to fetch keys.
    attempt_ended: PerProcess<Condvar>,
}

#[derive(Clone)]
struct RenewalState {
    keys: Arc<S3Credentials>,
    fetched: SystemTime,
    expires: SystemTime,
    /// Whether a thread is fetching keys.
    is_fetching: bool,
    /// The number of attempts that have ended.
    attempts: u64,
    /// The failure of the last attempt: kind, reason and time.
    failure: Option<(ErrorKind, String, Instant)>,
}

/// The state of keys, in the order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum KeyAge {
    Fresh,
    /// One caller fetches new keys, and other callers use the current keys.
    Due,
    /// All callers wait for new keys. If no new keys can be fetched, callers use the current keys.
    Pressing,
    Expired,
}

impl RenewedKeys {
    /// Creates renewed keys from the first keys that `fetch` returned.
    pub(super) fn new(
        first: ExpiringKeys,
        fetch: impl Fn(Duration) -> Result<ExpiringKeys> + Send + Sync + 'static,
    ) -> Self {
        let ExpiringKeys { keys, fetched, expires } = first;
        let keys = Arc::new(keys);
        let first = RenewalState { keys, fetched, expires, is_fetching: false, attempts: 0, failure: None };
        let (state, attempt_ended) = Default::default();
        RenewedKeys(Arc::new(Renewal { fetch: Box::new(fetch), first, state, attempt_ended }))
    }

    /// Returns valid keys. If the current keys expire soon, fetches new keys, or waits for another caller that fetches
    /// them, for at most `limit`. Errors, only if the current keys have expired: errors from fetching keys, `Timeout`,
    /// `Interrupted`. Cost: no system call as long as the keys are fresh.
    pub(super) fn current(&self, limit: Duration) -> Result<Arc<S3Credentials>> {
        let end = Instant::now() + limit;
        let mut state = self.0.lock();
        let first_attempt = state.attempts;
        loop {
            let age = state.age(SystemTime::now());
            let may_use = age < KeyAge::Expired;
            let left = end.saturating_duration_since(Instant::now());
            match age {
                KeyAge::Fresh => return Ok(state.keys.clone()),
                KeyAge::Due if state.is_fetching => return Ok(state.keys.clone()),
                _ if may_use && state.has_just_failed() => return Ok(state.keys.clone()),
                _ if state.attempts > first_attempt && state.failure.is_some() => {
                    return if may_use { Ok(state.keys.clone()) } else { Err(state.error()) };
                }
                _ if left.is_zero() && may_use => return Ok(state.keys.clone()),
                _ if left.is_zero() => return Err(state.error()),
                _ if state.is_fetching => state = self.0.wait(state, left)?,
                _ => state = self.0.attempt(state, left),
            }
        }
    }

    /// Returns the current keys, even if they have expired.
    pub(super) fn last(&self) -> Arc<S3Credentials> {
        self.0.lock().keys.clone()
    }

    /// Returns a phrase that describes the keys in messages. If the keys could not be renewed, the phrase contains the
    /// reason.
    pub(super) fn described(&self) -> String {
        let state = self.0.lock();
        let keys = state.keys.described();
        match &state.failure {
            Some((_, why, _)) => format!("{keys}, which could not be renewed ({why})"),
            None => keys,
        }
    }
}

impl Renewal {
    fn lock(&self) -> MutexGuard<'_, RenewalState> {
        let state = self.state.get_or_init(|| Mutex::new(self.first.clone()));
        state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the attempt of another thread ends, for at most `limit`. Errors: `Interrupted`.
    fn wait<'s>(
        &self,
        state: MutexGuard<'s, RenewalState>,
        limit: Duration,
    ) -> Result<MutexGuard<'s, RenewalState>> {
        let waited = self.attempt_ended.wait_timeout(state, wait_at_most(limit));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        after_signal().map_err(|errno| Error::new(ErrorKind::Interrupted, "").caused_by(errno))?;
        Ok(state)
    }

    /// Fetches keys, without holding the lock.
    fn attempt<'s>(
        &'s self,
        mut state: MutexGuard<'s, RenewalState>,
        limit: Duration,
    ) -> MutexGuard<'s, RenewalState> {
        state.is_fetching = true;
        drop(state);
        let fetched = (self.fetch)(limit);
        let mut state = self.lock();
        state.is_fetching = false;
        state.attempts += 1;
        match fetched {
            Ok(ExpiringKeys { keys, fetched, expires }) => {
                (state.keys, state.fetched, state.expires) = (Arc::new(keys), fetched, expires);
                state.failure = None;
            }
            Err(error) => {
                tracing::warn!(%error, "keys cannot be renewed");
                state.failure = Some((error.kind(), error.detail().to_owned(), Instant::now()));
            }
        }
        self.attempt_ended.notify_all();
        state
    }
}

impl RenewalState {
    /// Short-lived keys are renewed after half of their lifetime, and must be renewed after three quarters of it.
    fn age(&self, now: SystemTime) -> KeyAge {
        let life = self.expires.duration_since(self.fetched).unwrap_or_default();
        match self.expires.duration_since(now) {
            Ok(left) if left > RENEW_BEFORE.min(life / 2) => KeyAge::Fresh,
            Ok(left) if left > WAIT_BEFORE.min(life / 4) => KeyAge::Due,
            Ok(left) if !left.is_zero() => KeyAge::Pressing,
            _ => KeyAge::Expired,
        }
    }

    fn has_just_failed(&self) -> bool {
        self.failure.as_ref().is_some_and(|(_, _, at)| at.elapsed() < RETRY_PAUSE)
    }

    /// Returns the error for keys that have expired.
    fn error(&self) -> Error {
        let (kind, why) = match &self.failure {
            Some((kind, why, _)) => (*kind, why.as_str()),
            None => (ErrorKind::Timeout, "other keys did not arrive in time"),
        };
        Error::new(kind, format!("{} has expired: {why}", self.keys.described()))
    }
}

impl PartialEq for RenewedKeys {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for RenewedKeys {}

impl fmt::Debug for RenewedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.described())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::thread;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Returns keys with a lifetime of one hour, which expire in `left_s` seconds.
    fn keys(name: &str, left_s: i64) -> ExpiringKeys {
        let now = SystemTime::now();
        let expires = match u64::try_from(left_s) {
            Ok(left_s) => now + Duration::from_secs(left_s),
            Err(_) => now - Duration::from_secs(left_s.unsigned_abs()),
        };
        let fetched = expires - Duration::from_secs(3600);
        ExpiringKeys { keys: S3Credentials::keys(name, "secret", "a test"), fetched, expires }
    }

    fn name(keys: &S3Credentials) -> String {
        match keys {
            S3Credentials::Keys { access_key, .. } => access_key.clone(),
            other => panic!("{other:?}"),
        }
    }

    fn failed() -> Error {
        Error::new(ErrorKind::InvalidArgument, "the program failed")
    }

    #[test]
    fn keys_are_renewed_when_they_are_due_and_not_before() {
        let fetches = Arc::new(AtomicU32::new(0));
        for (left_s, expected) in [(3600, "old"), (1000, "old"), (899, "new"), (599, "new"), (-1, "new")] {
            let counted = fetches.clone();
            let renewed = RenewedKeys::new(keys("old", left_s), move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok(keys("new", 3600))
            });
            for _ in 0..3 {
                assert_eq!(name(&renewed.current(LIMIT).unwrap()), expected, "{left_s} s left");
            }
        }
        assert_eq!(fetches.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn keys_with_a_short_life_are_not_fetched_for_each_request() {
        let now = SystemTime::now();
        let (fetched, expires) = (now, now + Duration::from_secs(60));
        let short = ExpiringKeys { fetched, expires, ..keys("short", 0) };
        let renewed = RenewedKeys::new(short, |_| panic!("the keys are fresh"));
        assert_eq!(name(&renewed.current(LIMIT).unwrap()), "short");
    }

    #[test]
    fn one_caller_fetches_and_others_use_the_current_keys_while_these_are_valid() {
        let fetches = Arc::new(AtomicU32::new(0));
        let counted = fetches.clone();
        let renewed = RenewedKeys::new(keys("old", 800), move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(300));
            Ok(keys("new", 3600))
        });
        let names: Vec<String> = thread::scope(|scope| {
            let calls: Vec<_> =
                (0..8).map(|_| scope.spawn(|| name(&renewed.current(LIMIT).unwrap()))).collect();
            calls.into_iter().map(|call| call.join().unwrap()).collect()
        });
        assert_eq!(names.iter().filter(|name| *name == "new").count(), 1, "{names:?}");
        assert_eq!(fetches.load(Ordering::Relaxed), 1);
        assert_eq!(name(&renewed.current(LIMIT).unwrap()), "new");
    }

    #[test]
    fn all_callers_wait_for_one_fetch_if_the_keys_have_expired() {
        for is_broken in [false, true] {
            let fetches = Arc::new(AtomicU32::new(0));
            let counted = fetches.clone();
            let renewed = RenewedKeys::new(keys("old", -1), move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(500));
                if is_broken { Err(failed()) } else { Ok(keys("new", 3600)) }
            });
            thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| match renewed.current(LIMIT) {
                        Ok(keys) => assert!(!is_broken && name(&keys) == "new"),
                        Err(error) => {
                            assert!(is_broken && error.detail().contains("program failed"), "{error}")
                        }
                    });
                }
            });
            assert_eq!(fetches.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    fn valid_keys_are_used_although_their_renewal_fails() {
        let fetches = Arc::new(AtomicU32::new(0));
        let counted = fetches.clone();
        let renewed = RenewedKeys::new(keys("old", 300), move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            Err(failed())
        });
        for _ in 0..5 {
            assert_eq!(name(&renewed.current(LIMIT).unwrap()), "old");
        }
        assert_eq!(fetches.load(Ordering::Relaxed), 1, "there is a pause after a failure");
        assert!(renewed.described().contains("could not be renewed (the program failed)"));
        assert!(!format!("{renewed:?}").contains("secret"));
    }

    #[test]
    fn a_caller_waits_no_longer_than_its_limit() {
        let renewed = RenewedKeys::new(keys("old", -1), |_| {
            thread::sleep(Duration::from_secs(2));
            Ok(keys("new", 3600))
        });
        thread::scope(|scope| {
            scope.spawn(|| renewed.current(LIMIT).unwrap());
            while !renewed.0.lock().is_fetching {
                thread::sleep(Duration::from_millis(5));
            }
            let begin = Instant::now();
            let error = renewed.current(Duration::from_millis(100)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            assert!(begin.elapsed() < Duration::from_millis(1500));
        });
    }
}
