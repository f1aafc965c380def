//! The known properties of servers, kept for the lifetime of the process, so that no unsupported method is tried twice.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{HttpSession, RemoteResource};
use crate::{HttpVersion, Origin};
use fordway_sys::PerProcess;

/// The maximum length of a range list: nginx and Apache refuse a header of more than 8 KiB.
const LIST_BYTES: usize = 7_500;
/// The maximum number of ranges in a request to a server that is not known to have a lower limit.
const RANGES: usize = 1_000;
/// The limits of common servers, tried one after the other when a server responds with the whole file: Apache's
/// `MaxRanges`, and lighttpd's limit.
const USUAL_LIMITS: [usize; 2] = [200, 10];
/// Pipelining is disabled after this many connections have been closed after their first response, or this many
/// requests have received no response.
const STRIKES: u8 = 2;

/// The known properties of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerProfile {
    /// The maximum number of ranges in a request; 1 if the server does not support lists.
    pub ranges_per_request: usize,
    /// The maximum length of a range list, in bytes.
    pub list_bytes: usize,
    /// Whether the server accepts requests before its previous response has been received.
    pub pipelines: bool,
    /// Whether the server ignores ranges and sends the whole file.
    pub ignores_ranges: bool,
    /// The shortest time from a request to its response.
    pub round_trip: Option<Duration>,
    /// The rate at which a large response arrived.
    pub bytes_per_s: Option<f64>,
    strikes: u8,
    /// The number of requests sent ahead that timed out.
    forgotten: u8,
    /// Whether the server refuses requests for a digest, or takes too long to compute one.
    pub(super) refuses_digests: bool,
    /// Whether the server has responded to a request that was sent before the previous response had ended.
    pub(super) has_overlapped: bool,
    /// Whether the server has responded to a request that was sent together with the previous one. XRootD never
    /// responds to such a request, although it accepts another request while it is sending a response.
    pub(super) has_pipelined: bool,
}

impl ServerProfile {
    pub(super) fn guess(may_know_many_ranges: bool) -> Self {
        ServerProfile {
            ranges_per_request: if may_know_many_ranges { RANGES } else { 1 },
            list_bytes: LIST_BYTES,
            pipelines: true,
            ignores_ranges: false,
            round_trip: None,
            bytes_per_s: None,
            strikes: 0,
            forgotten: 0,
            refuses_digests: false,
            has_overlapped: false,
            has_pipelined: false,
        }
    }

    /// Sets limits according to the `Server` header, which avoids discovering them through failed requests.
    pub(super) fn introduced(&mut self, server: &str) {
        let name = server.split(['/', ' ']).next().unwrap_or_default().to_ascii_lowercase();
        let limit = match name.as_str() {
            "apache" => USUAL_LIMITS[0],
            "lighttpd" => USUAL_LIMITS[1],
            "amazons3" => 1,
            // XRootD accepts many pipelined requests, but occasionally does not respond to one of them.
            "xrootd" => return self.pipelines = false,
            _ => return,
        };
        self.ranges_per_request = self.ranges_per_request.min(limit);
    }

    /// Records that the server sent the whole file in response to a request for `asked` ranges.
    pub(super) fn list_refused(&mut self, asked: usize) {
        let lower = USUAL_LIMITS.into_iter().find(|limit| *limit < asked).unwrap_or(1);
        self.ranges_per_request = self.ranges_per_request.min(lower);
    }

    /// Records that the server sent the whole file in response to a request for one range.
    pub(super) fn range_ignored(&mut self) {
        (self.ranges_per_request, self.pipelines, self.ignores_ranges) = (1, false, true);
    }

    /// Records that a list of ranges was refused with an error.
    pub(super) fn lists_refused(&mut self) {
        self.ranges_per_request = 1;
    }

    /// Records that the response to a request for `asked` ranges contained only `answered` of these ranges.
    pub(super) fn list_cut(&mut self, asked: usize, answered: usize) {
        if answered < asked {
            self.ranges_per_request = self.ranges_per_request.min(answered.max(1));
        }
    }

    /// Records that a request for `asked` ranges, in a list of `list_bytes` bytes, was refused as malformed or too
    /// large.
    pub(super) fn head_refused(&mut self, asked: usize, list_bytes: usize) {
        match list_bytes {
            2000.. => self.list_bytes = self.list_bytes.min(list_bytes / 2),
            _ => self.list_refused(asked),
        }
    }

    /// Records a response to the only request in flight. The head of the response arrived after `wait`, and the `bytes`
    /// of the body arrived within a further `time`.
    pub(super) fn answered(&mut self, wait: Duration, bytes: u64, time: Duration) {
        /// The minimum size of a response whose rate is measured; the rate of a smaller response depends on buffers
        /// instead of the network.
        const BYTES_MIN: u64 = 1 << 20;
        self.round_trip = Some(self.round_trip.map_or(wait, |before| before.min(wait)));
        if bytes >= BYTES_MIN {
            self.bytes_per_s = Some(bytes as f64 / time.as_secs_f64().max(1e-6));
        }
    }

    /// Records that the server closed a connection after its first response, with requests in flight.
    pub(super) fn pipeline_cut(&mut self) {
        self.strikes += 1;
        self.pipelines &= self.strikes < STRIKES;
    }

    /// Records a response to a request that was sent before the previous response had ended, or even together with the
    /// previous request (`came_along`).
    pub(super) fn pipeline_kept(&mut self, came_along: bool) {
        (self.strikes, self.has_overlapped) = (0, true);
        self.has_pipelined |= came_along;
    }

    /// Records that the server responded to a request, but not to another request that was sent together with it.
    pub(super) fn pipeline_left(&mut self) {
        self.pipelines &= self.has_pipelined;
    }

    /// Records that a request that was sent together with another request timed out. The server has already responded
    /// to requests of this kind.
    pub(super) fn pipeline_forgotten(&mut self) {
        self.forgotten += 1;
        self.pipelines &= self.forgotten < STRIKES;
    }

    /// Returns the approximate number of requests needed for this many ranges.
    pub(super) fn requests_for(&self, ranges: usize) -> usize {
        /// The typical length of a range in a list: two numbers of 9 digits, a hyphen and a comma.
        const RANGE_BYTES: usize = 20;
        ranges.div_ceil(self.ranges_per_request.min(self.list_bytes / RANGE_BYTES).max(1))
    }

    /// Returns the maximum size at which a gap between wanted bytes is cheaper to receive than to skip with another
    /// range.
    pub(super) fn gap_bytes(&self) -> u64 {
        /// The size of a part's head, plus the length of its range in the request.
        const PART: u64 = 192;
        /// The total size of two heads: the request's and the response's.
        const EXCHANGE: u64 = 768;
        match (self.ranges_per_request, self.pipelines) {
            _ if self.ignores_ranges => u64::MAX,
            (2.., _) => PART,
            (_, true) => EXCHANGE,
            (_, false) => {
                let wait = self.round_trip.unwrap_or(Duration::from_millis(1)).as_secs_f64();
                // If no rate has been measured, assume 1 Gbit/s.
                let bytes = wait * self.bytes_per_s.unwrap_or(125e6);
                (bytes as u64).clamp(4 << 10, 1 << 20)
            }
        }
    }
}

/// An origin, the proxy used for it, and the HTTP version. Each combination may behave differently.
type ServerRoute = (Origin, Option<String>, HttpVersion);

/// The maximum number of remembered servers.
const LEARNED_MAX: usize = 10_000;

static LEARNED: LazyLock<PerProcess<Mutex<HashMap<ServerRoute, ServerProfile>>>> =
    LazyLock::new(PerProcess::default);

fn way(session: &HttpSession, target: &dyn RemoteResource) -> ServerRoute {
    let origin = target.origin();
    (origin.clone(), session.http.proxies().name_of(origin), session.options.http)
}

/// Returns the known properties of `target`'s server, or default values if the server is unknown.
pub(super) fn about(session: &HttpSession, target: &dyn RemoteResource) -> ServerProfile {
    let all = all();
    match all.get(&way(session, target)) {
        Some(learned) => learned.clone(),
        None => ServerProfile::guess(target.may_know_many_ranges()),
    }
}

/// Like [`about`], but for a list of ranges that must not be refused. For an unknown server, returns limits that are
/// accepted by every server that supports lists.
pub(super) fn about_or_careful(session: &HttpSession, target: &dyn RemoteResource) -> ServerProfile {
    let known = all().get(&way(session, target)).cloned();
    known.unwrap_or_else(|| {
        let mut careful = ServerProfile::guess(target.may_know_many_ranges());
        careful.ranges_per_request = careful.ranges_per_request.min(USUAL_LIMITS[1]);
        careful
    })
}

/// Changes the known properties of `target`'s server, and returns all of them.
pub(super) fn note(
    session: &HttpSession,
    target: &dyn RemoteResource,
    change: impl FnOnce(&mut ServerProfile),
) -> ServerProfile {
    let mut known = all();
    let guess = || ServerProfile::guess(target.may_know_many_ranges());
    let route = way(session, target);
    // A hostile server can redirect to any number of servers.
    if known.len() >= LEARNED_MAX && !known.contains_key(&route) {
        known.clear();
    }
    let learned = known.entry(route).or_insert_with(guess);
    let before = learned.clone();
    change(learned);
    if (before.ranges_per_request, before.pipelines) != (learned.ranges_per_request, learned.pipelines) {
        tracing::debug!(origin = %target.origin(), ?learned, "learned");
    }
    learned.clone()
}

fn all() -> MutexGuard<'static, HashMap<ServerRoute, ServerProfile>> {
    LEARNED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_lower_limits_and_never_raise_them() {
        let mut learned = ServerProfile::guess(true);
        for (asked, limit) in [(390, 200), (200, 10), (150, 10), (10, 1), (2, 1)] {
            learned.list_refused(asked);
            assert_eq!(learned.ranges_per_request, limit, "{asked}");
        }
        let mut learned = ServerProfile::guess(true);
        learned.introduced("lighttpd/1.4.69");
        learned.introduced("Apache/2.4.62 (Debian)");
        assert!(learned.pipelines);
        learned.introduced("XrootD/v5.5.3");
        assert!(!learned.pipelines);
        assert_eq!(learned.ranges_per_request, 10);
        learned.list_cut(10, 10);
        learned.list_cut(10, 4);
        assert_eq!(learned.ranges_per_request, 4);
        learned.list_cut(4, 0);
        assert_eq!(learned.ranges_per_request, 1);
    }

    #[test]
    fn requests_are_counted_by_both_limits() {
        let mut learned = ServerProfile::guess(true);
        assert_eq!([1, 375, 376, 4_000].map(|ranges| learned.requests_for(ranges)), [1, 1, 2, 11]);
        learned.list_refused(11);
        assert_eq!(learned.requests_for(15), 2);
    }

    #[test]
    fn one_cut_may_be_chance() {
        let mut learned = ServerProfile::guess(true);
        learned.pipeline_cut();
        learned.pipeline_kept(true);
        learned.pipeline_cut();
        assert!(learned.pipelines);
        learned.pipeline_cut();
        assert!(!learned.pipelines);
    }

    #[test]
    fn who_was_seen_to_pipeline_may_be_slow() {
        let (mut seen, mut unknown) = (ServerProfile::guess(true), ServerProfile::guess(true));
        seen.pipeline_kept(true);
        unknown.pipeline_kept(false);
        seen.pipeline_left();
        unknown.pipeline_left();
        assert_eq!([seen.pipelines, unknown.pipelines], [true, false]);
    }

    #[test]
    fn what_is_forgotten_again_is_no_chance() {
        let mut learned = ServerProfile::guess(true);
        for pipelines in [true, false] {
            learned.pipeline_kept(true);
            learned.pipeline_forgotten();
            assert_eq!(learned.pipelines, pipelines);
        }
    }

    #[test]
    fn wider_gaps_are_read_where_requests_cost_more() {
        let many = ServerProfile::guess(true);
        let single = ServerProfile::guess(false);
        let slow =
            ServerProfile { pipelines: false, round_trip: Some(Duration::from_millis(2)), ..single.clone() };
        assert!(many.gap_bytes() < single.gap_bytes() && single.gap_bytes() < slow.gap_bytes());
        assert_eq!(slow.gap_bytes(), 250_000);
        let mut measured = slow;
        measured.answered(Duration::from_millis(1), 2_000_000, Duration::from_millis(20));
        measured.answered(Duration::from_millis(3), 100, Duration::from_millis(1));
        assert_eq!(measured.gap_bytes(), 100_000);
    }
}
