//! How long to wait before a request is sent again.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, SystemTime};

use fordway_wire::date;
use fordway_wire::range::digits;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// A random wait before try number `tries + 1`, from half to the whole of a limit that doubles with
/// each try: clients that failed together do not come back together. A server's wish counts more,
/// up to 5 seconds.
pub(crate) fn backoff(tries: u32, retry_after: Option<Duration>) -> Duration {
    let doubled = FIRST.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(LONGEST);
    // Every `RandomState` hashes differently: as random as jitter needs to be.
    let random = RandomState::new().hash_one(tries) as f64 / u64::MAX as f64;
    let wait = doubled.mul_f64(0.5 + 0.5 * random);
    retry_after.map_or(wait, |wish| wish.min(LONGEST).max(wait))
}

/// The wait that a `Retry-After` header asks for: seconds, or a date.
pub(crate) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let until_date = || date::parse_http(text).map(|date| date.duration_since(now).unwrap_or_default());
    digits(text.trim()).map(Duration::from_secs).or_else(until_date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_and_stay_bounded() {
        for (tries, least_ms, most_ms) in [(1, 25, 50), (2, 50, 100), (4, 200, 400), (40, 2500, 5000)] {
            let wait = backoff(tries, None);
            assert!(wait >= Duration::from_millis(least_ms) && wait <= Duration::from_millis(most_ms));
        }
        assert_eq!(backoff(1, Some(Duration::from_secs(2))), Duration::from_secs(2));
        assert_eq!(backoff(1, Some(Duration::from_secs(600))), LONGEST);
    }

    #[test]
    fn servers_wish_in_seconds_or_by_date() {
        let now = date::parse_http("Fri, 24 May 2013 00:00:00 GMT").unwrap();
        let wish = |text| retry_after(text, now).map(|wish| wish.as_secs());
        assert_eq!([wish("7"), wish("Fri, 24 May 2013 00:01:05 GMT")], [Some(7), Some(65)]);
        assert_eq!([wish("Fri, 24 May 2013 00:00:00 GMT"), wish("soon"), wish("-1")], [Some(0), None, None]);
    }
}
