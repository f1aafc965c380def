//! One replica of a file: its URL and its statistics. This module also records the failures of each server, which
//! expire with time, and the server's transfer rate.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fordway_store::{Error, ErrorKind};
use fordway_sys::PerProcess;

use super::board::SharedError;
use crate::retry::backoff;

/// The key that sorts the best replicas first. Replicas on servers with recent failures come last. Within each of the
/// two groups, replicas are sorted by priority, and then by location, preferred locations first.
pub(super) type ReplicaRank = (bool, u32, bool);

/// The number of times that a replica's connections may be cut before the cuts count as failures, if each connection
/// delivers bytes.
const CUTS_MAX: u32 = 50;

/// A replica of the file.
pub(super) struct ReplicaSite {
    pub(super) url: String,
    /// The URL without parts that may be secret.
    pub(super) shown: String,
    priority: u32,
    is_preferred: bool,
    /// The server's scheme, host and port.
    origin: String,
    /// Why the replica is no longer used; `None` while it is in use.
    pub(super) out: Option<SharedError>,
    /// The number of failures that have counted against the replica since a job was last completed.
    strikes: u32,
    /// The number of all failures since a job was last completed.
    cuts: u32,
    not_before: Option<Instant>,
    last: Option<SharedError>,
    /// Whether streams left the replica because it was slow; other replicas are then used first.
    is_slow: bool,
    /// Whether the replica must not be used while another replica is being tested.
    pub(super) is_set_aside: bool,
    /// The number of bytes from this replica that were used.
    pub(super) delivered_bytes: u64,
}

impl ReplicaSite {
    pub(super) fn new(url: &str, shown: &str, priority: u32, is_preferred: bool) -> Self {
        let end = url.find("://").map_or(0, |at| at + 3);
        let host_end = url[end..].find(['/', '?']).map_or(url.len(), |at| end + at);
        ReplicaSite {
            url: url.to_owned(),
            shown: shown.to_owned(),
            priority,
            is_preferred,
            origin: url[..host_end].to_ascii_lowercase(),
            out: None,
            strikes: 0,
            cuts: 0,
            not_before: None,
            last: None,
            is_slow: false,
            is_set_aside: false,
            delivered_bytes: 0,
        }
    }

    fn standing(&self) -> ServerHealth {
        standing_of(&self.origin)
    }

    pub(super) fn rank(&self, now: Instant) -> ReplicaRank {
        let is_avoided = self.is_slow || self.strikes > 0 || self.standing().is_avoided(now);
        (is_avoided, self.priority, !self.is_preferred)
    }

    pub(super) fn bytes_per_s(&self, now: Instant) -> Option<f64> {
        self.standing().bytes_per_s(now).filter(|_| self.out.is_none())
    }

    /// Returns whether streams may continue to read from the replica.
    pub(super) fn is_open(&self) -> bool {
        self.out.is_none() && !self.is_set_aside
    }

    /// Returns whether the replica may be used, now or later.
    pub(super) fn may_serve(&self, strikes_max: u32) -> bool {
        self.is_open() && self.strikes < strikes_max
    }

    pub(super) fn is_eligible(&self, now: Instant, strikes_max: u32) -> bool {
        self.may_serve(strikes_max) && self.not_before.is_none_or(|until| until <= now)
    }

    /// Returns whether no failure counts against the replica.
    pub(super) fn is_untried(&self) -> bool {
        self.out.is_none() && self.strikes == 0
    }

    /// Returns the time before which the replica is not used again after a failure. Returns `None` if nothing has
    /// failed since the last delivery, or if the replica is no longer used at all.
    pub(super) fn ready_at(&self, strikes_max: u32) -> Option<Instant> {
        self.not_before.filter(|_| self.may_serve(strikes_max))
    }

    /// Records a failure. After a permanent failure, or too many failures without progress, the replica is no longer
    /// used. After any other failure, the replica is used again later.
    pub(super) fn failed(&mut self, error: &Error, has_brought: bool, now: Instant) {
        let cause = std::error::Error::source(error).map(|cause| format!(": {cause}")).unwrap_or_default();
        let told = SharedError { kind: error.kind(), detail: format!("{}{cause}", error.detail()) };
        tracing::debug!(url = self.shown, %error, "a replica failed");
        let weight = if error.kind() == ErrorKind::BadDigest { 10.0 } else { 1.0 };
        note_standing(&self.origin, |standing| standing.failed(weight, now));
        // Connections that deliver bytes before they are cut count as failures only after `CUTS_MAX` cuts.
        self.cuts += 1;
        self.strikes += u32::from(!has_brought || self.cuts > CUTS_MAX);
        self.not_before = Some(now + backoff(self.strikes.max(1)));
        if is_for_good(error.kind()) {
            self.out = Some(told.clone());
        }
        self.last = Some(told);
    }

    /// Records that `bytes` bytes from the replica were used, and resets the replica's failure counts.
    pub(super) fn served(&mut self, bytes: u64, bytes_per_s: Option<f64>, now: Instant) {
        self.delivered_bytes += bytes;
        (self.strikes, self.cuts, self.not_before) = (0, 0, None);
        note_standing(&self.origin, |standing| standing.served(bytes_per_s, now));
    }

    /// Records that a stream left the replica because it was slow.
    pub(super) fn left(&mut self, bytes_per_s: Option<f64>, now: Instant) {
        self.is_slow = true;
        note_standing(&self.origin, |standing| {
            standing.served(bytes_per_s, now);
            standing.failed(1.0, now);
        });
    }

    /// Resets the counts of failures that may have been temporary.
    pub(super) fn forgive(&mut self) {
        (self.strikes, self.cuts, self.not_before) = (0, 0, None);
    }
}

fn is_for_good(kind: ErrorKind) -> bool {
    use ErrorKind as K;
    let may_pass = matches!(
        kind,
        K::Unavailable | K::Timeout | K::Io | K::IncompleteBody | K::BadResponse | K::PreconditionFailed
    );
    !may_pass
}

/// Returns an error with the reason why none of the replicas delivered the bytes.
pub(super) fn told(sites: &[ReplicaSite]) -> SharedError {
    let causes: Vec<(&ReplicaSite, &SharedError)> =
        sites.iter().filter_map(|site| Some((site, site.out.as_ref().or(site.last.as_ref())?))).collect();
    let first = causes.first().map_or(ErrorKind::Unavailable, |(_, told)| told.kind);
    let has_corrupt = causes.iter().any(|(_, told)| told.kind == ErrorKind::BadDigest);
    let kind = match () {
        () if has_corrupt => ErrorKind::BadDigest,
        () if causes.iter().all(|(_, told)| told.kind == first) => first,
        () => ErrorKind::Unavailable,
    };
    let why: Vec<_> = causes.iter().map(|(site, told)| format!("{}: {}", site.shown, told.detail)).collect();
    let detail = match sites.len() {
        1 => why.join(", "),
        count => format!("none of the {count} replicas delivered it: {}", why.join(", ")),
    };
    SharedError { kind, detail }
}

/// The half-life of a failure's weight.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// The penalty above which a server is used only after all others.
const AVOIDED_OVER: f64 = 0.5;
/// How long a measured rate is valid.
const RATE_LIFETIME: Duration = Duration::from_secs(300);
/// The maximum number of remembered servers.
const REMEMBERED_MAX: usize = 10_000;

/// The failures and the rate of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServerHealth {
    /// The weighted number of failures, and when it was last updated.
    penalty: Option<(f64, Instant)>,
    rate: Option<(f64, Instant)>,
}

impl ServerHealth {
    /// Returns the weighted number of failures at the time `now`.
    pub(super) fn penalty(&self, now: Instant) -> f64 {
        self.penalty.map_or(0.0, |(penalty, at)| {
            let age = now.saturating_duration_since(at).as_secs_f64();
            penalty * 0.5_f64.powf(age / HALF_LIFE.as_secs_f64())
        })
    }

    /// Returns whether other servers are used first.
    pub(super) fn is_avoided(&self, now: Instant) -> bool {
        self.penalty(now) > AVOIDED_OVER
    }

    /// Returns the rate in bytes per second, if it was measured recently.
    pub(super) fn bytes_per_s(&self, now: Instant) -> Option<f64> {
        self.rate.filter(|(_, at)| now.saturating_duration_since(*at) < RATE_LIFETIME).map(|(rate, _)| rate)
    }

    pub(super) fn failed(&mut self, weight: f64, now: Instant) {
        self.penalty = Some((self.penalty(now) + weight, now));
    }

    pub(super) fn served(&mut self, bytes_per_s: Option<f64>, now: Instant) {
        self.penalty = Some((self.penalty(now) / 2.0, now));
        self.rate = bytes_per_s.map(|rate| (rate, now)).or(self.rate);
    }
}

/// The remembered servers, by scheme, host and port, for the lifetime of the process.
static REMEMBERED: LazyLock<PerProcess<Mutex<HashMap<String, ServerHealth>>>> =
    LazyLock::new(PerProcess::default);

/// Returns the remembered state of a server.
pub(super) fn standing_of(origin: &str) -> ServerHealth {
    remembered().get(origin).copied().unwrap_or_default()
}

/// Changes the remembered state of a server.
pub(super) fn note_standing(origin: &str, change: impl FnOnce(&mut ServerHealth)) {
    let mut remembered = remembered();
    if remembered.len() >= REMEMBERED_MAX {
        remembered.clear();
    }
    change(remembered.entry(origin.to_owned()).or_default());
}

fn remembered() -> MutexGuard<'static, HashMap<String, ServerHealth>> {
    REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_forgiven_with_time_and_by_service() {
        let now = Instant::now();
        let mut standing = ServerHealth::default();
        assert!(!standing.is_avoided(now));
        standing.failed(1.0, now);
        assert!(standing.is_avoided(now) && standing.is_avoided(now + HALF_LIFE / 2));
        assert!(!standing.is_avoided(now + HALF_LIFE * 2));
        standing.served(Some(1e6), now);
        assert!(!standing.is_avoided(now));
        assert_eq!(standing.bytes_per_s(now), Some(1e6));
        assert_eq!(standing.bytes_per_s(now + RATE_LIFETIME), None);
        assert_eq!(ServerHealth { penalty: None, rate: None }.penalty(now), 0.0);
    }
}
