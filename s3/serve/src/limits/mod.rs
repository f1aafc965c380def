//! Limits on users and on clients whose user is not known yet.
//!
//! A [`UserResourceUsage`] counts a user's connections, requests in flight and bytes. `body` ends transfers that are
//! too slow, `turns` makes users take turns on a busy thread, and `connection` limits clients without a valid
//! signature. For a client within the limits, the cost is a few atomic operations.

mod body;
mod connection;
mod turns;

pub(crate) use body::{BodyTransferLimits, LimitCounters, RatePacer, TransferRateMeter};
pub(crate) use connection::{ConnectionLimitState, UnauthenticatedConnections};
pub(crate) use turns::{forget_turns, is_shared, take_turn};

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The maximum weight of a user.
pub(crate) const WEIGHT_MAX: u32 = 1000;

/// The debt above which a user's bodies are delayed. The debt is the time by which the user is ahead of the rate limit.
const RATE_SLACK: Duration = Duration::from_millis(250);
/// The debt above which further requests of a user are refused.
const RATE_DEBT_MAX: Duration = Duration::from_secs(1);

/// The share of a gateway's resources that one user may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// The maximum number of open connections; the first request on a further connection is answered with 503
    /// `SlowDown`, and the connection is closed. The node gateway has its own setting instead.
    pub connections_max: u32,
    /// The maximum number of requests in flight; further requests are answered with 503 `SlowDown`.
    pub requests_max: u32,
    /// The maximum number of body bytes per second, in both directions together; `None` for no limit.
    pub bytes_per_s_max: Option<NonZeroU64>,
    /// The user's share of a busy thread, relative to the weights of other users: 1 to 1,000.
    pub weight: u32,
}

impl Default for UserLimits {
    /// Returns the default limits: 8,192 connections, 8,192 requests in flight, no rate limit, weight 1.
    fn default() -> Self {
        UserLimits { connections_max: 8192, requests_max: 8192, bytes_per_s_max: None, weight: 1 }
    }
}

/// The limits from a user's entry in the credentials file. `None` selects the gateway's default limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserLimitOverrides {
    pub(crate) requests_max: Option<u32>,
    pub(crate) bytes_per_s_max: Option<NonZeroU64>,
    pub(crate) weight: Option<u32>,
}

impl UserLimitOverrides {
    fn or(self, others: UserLimits) -> UserLimits {
        UserLimits {
            connections_max: others.connections_max,
            requests_max: self.requests_max.unwrap_or(others.requests_max),
            bytes_per_s_max: self.bytes_per_s_max.or(others.bytes_per_s_max),
            weight: self.weight.unwrap_or(others.weight).clamp(1, WEIGHT_MAX),
        }
    }
}

/// The reason why a request was refused or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum LimitReason {
    /// The user has too many requests in flight.
    Requests = 1,
    /// The user exceeds the rate limit.
    Rate = 2,
    /// The body was sent or received too slowly.
    Slow = 3,
    /// The user has too many connections.
    Connections = 4,
}

impl LimitReason {
    const ALL: [LimitReason; 4] =
        [LimitReason::Requests, LimitReason::Rate, LimitReason::Slow, LimitReason::Connections];

    /// Returns the name that logs and metrics use for the reason.
    pub(crate) fn name(self) -> &'static str {
        match self {
            LimitReason::Requests => "requests",
            LimitReason::Rate => "rate",
            LimitReason::Slow => "slow",
            LimitReason::Connections => "connections",
        }
    }

    /// Returns the explanation for the user.
    pub(crate) fn why(self) -> &'static str {
        match self {
            LimitReason::Connections => "you have the maximum number of connections for one user",
            LimitReason::Requests => "you have the maximum number of requests in flight for one user",
            LimitReason::Rate | LimitReason::Slow => {
                "you exceed the maximum number of bytes per second for one user"
            }
        }
    }

    /// Returns the reason with this number (the result of `as u8`); `None` for any other number, such as 0.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        LimitReason::ALL.into_iter().find(|reason| *reason as u8 == number)
    }
}

/// The reason for a refusal, and the time after which the client should retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitRefusal {
    pub(crate) reason: LimitReason,
    pub(crate) retry_after_s: u64,
}

/// The counters of one user's connections, requests and bytes, and the user's limits. All threads share this value.
#[derive(Debug)]
pub(crate) struct UserResourceUsage {
    /// The number that identifies this user's counters; never 0.
    id: u64,
    stated: UserLimitOverrides,
    connections_max: AtomicU32,
    requests_max: AtomicU32,
    /// The maximum number of bytes per second; 0 for no limit.
    bytes_per_s_max: AtomicU64,
    weight: AtomicU32,
    connections: AtomicU32,
    in_flight: AtomicU32,
    /// The time, on the clock of [`now_ns`], from which the rate limit permits all bytes transferred so far.
    paid_until_ns: AtomicU64,
    /// The number of bytes of HTTP/2 and HTTP/3 responses that the user's clients have not received yet.
    pub(crate) held_bytes: AtomicU64,
    /// The number of bytes by which the send windows of the user's HTTP/3 connections have grown.
    #[cfg(feature = "http3")]
    pub(crate) window_growth_bytes: AtomicU64,
    refused_connections: AtomicU64,
    refused_requests: AtomicU64,
    refused_rate: AtomicU64,
    /// The usages of the users who act as this role, by uid. Each of them has the limits of this usage.
    by_uid: Mutex<HashMap<u32, Weak<UserResourceUsage>>>,
    /// The usage of the role that this user acts as, which counts the resources that all users of the role use
    /// together.
    role: Option<Arc<UserResourceUsage>>,
}

impl UserResourceUsage {
    pub(crate) fn new(stated: UserLimitOverrides, others: UserLimits) -> Arc<Self> {
        UserResourceUsage::of(stated, others, None)
    }

    fn of(stated: UserLimitOverrides, others: UserLimits, role: Option<Arc<Self>>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let account = UserResourceUsage {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            stated,
            connections_max: AtomicU32::new(0),
            requests_max: AtomicU32::new(0),
            bytes_per_s_max: AtomicU64::new(0),
            weight: AtomicU32::new(1),
            connections: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
            paid_until_ns: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            #[cfg(feature = "http3")]
            window_growth_bytes: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
            refused_requests: AtomicU64::new(0),
            refused_rate: AtomicU64::new(0),
            by_uid: Mutex::default(),
            role,
        };
        account.limit(others);
        Arc::new(account)
    }

    /// Returns the usage of the user with this uid, if this usage is the usage of a role. The role's limits apply to
    /// each of its users separately. The counters of the role include the counters of its users. A user's counters
    /// exist as long as a session, a request or a connection of the user.
    pub(crate) fn of_uid(self: &Arc<Self>, uid: u32) -> Arc<Self> {
        let mut by_uid = self.by_uid.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = by_uid.get(&uid).and_then(Weak::upgrade) {
            return known;
        }
        by_uid.retain(|_, usage| usage.strong_count() > 0);
        let usage = UserResourceUsage::of(self.stated, self.limits(), Some(self.clone()));
        by_uid.insert(uid, Arc::downgrade(&usage));
        usage
    }

    /// Returns the limits that apply now.
    fn limits(&self) -> UserLimits {
        UserLimits {
            connections_max: self.connections_max.load(Ordering::Relaxed),
            requests_max: self.requests_max.load(Ordering::Relaxed),
            bytes_per_s_max: NonZeroU64::new(self.bytes_per_s_max.load(Ordering::Relaxed)),
            weight: self.weight(),
        }
    }

    /// Returns this usage, and the usage of the role that the user acts as, if any.
    fn with_role(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.role.as_deref())
    }

    /// Sets each limit to the value in the user's entry. A limit that the entry does not specify gets the value in
    /// `others`.
    pub(crate) fn limit(&self, others: UserLimits) {
        let limits = self.stated.or(others);
        self.connections_max.store(limits.connections_max, Ordering::Relaxed);
        self.requests_max.store(limits.requests_max, Ordering::Relaxed);
        self.bytes_per_s_max.store(limits.bytes_per_s_max.map_or(0, NonZeroU64::get), Ordering::Relaxed);
        self.weight.store(limits.weight, Ordering::Relaxed);
    }

    /// Returns the limits from the user's entry.
    pub(crate) fn stated(&self) -> UserLimitOverrides {
        self.stated
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn weight(&self) -> u32 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Counts a request as in flight until the returned slot is dropped. Errors: the user has reached a limit. Cost:
    /// one atomic operation, and another one when the slot is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<UserRequestSlot, LimitRefusal> {
        let slot = self.begin_unpaced()?;
        let debt = if self.is_paced() { self.debt() } else { Duration::ZERO };
        if debt > RATE_DEBT_MAX {
            self.with_role().for_each(|usage| _ = usage.refused_rate.fetch_add(1, Ordering::Relaxed));
            return Err(LimitRefusal { reason: LimitReason::Rate, retry_after_s: debt.as_secs() + 1 });
        }
        Ok(slot)
    }

    /// Counts a request as in flight until the returned slot is dropped, and ignores the rate limit. This method is for
    /// requests whose bytes are not counted. Errors: the user has too many requests in flight.
    pub(crate) fn begin_unpaced(self: &Arc<Self>) -> Result<UserRequestSlot, LimitRefusal> {
        if !count_one(&self.in_flight, &self.requests_max) {
            self.with_role().for_each(|usage| _ = usage.refused_requests.fetch_add(1, Ordering::Relaxed));
            return Err(LimitRefusal { reason: LimitReason::Requests, retry_after_s: 1 });
        }
        if let Some(role) = &self.role {
            role.in_flight.fetch_add(1, Ordering::Relaxed);
        }
        Ok(UserRequestSlot(self.clone()))
    }

    /// Counts a connection as open until the returned slot is dropped. Errors: the user has too many connections.
    pub(crate) fn connect(self: &Arc<Self>) -> Result<UserConnectionSlot, LimitRefusal> {
        if !count_one(&self.connections, &self.connections_max) {
            self.with_role().for_each(|usage| _ = usage.refused_connections.fetch_add(1, Ordering::Relaxed));
            return Err(LimitRefusal { reason: LimitReason::Connections, retry_after_s: 1 });
        }
        if let Some(role) = &self.role {
            role.connections.fetch_add(1, Ordering::Relaxed);
        }
        Ok(UserConnectionSlot(self.clone()))
    }

    /// Returns whether the user has a rate limit.
    pub(crate) fn is_paced(&self) -> bool {
        self.bytes_per_s_max.load(Ordering::Relaxed) != 0
    }

    /// Counts body bytes against the user's rate limit.
    pub(crate) fn charge(&self, bytes: u64) {
        let rate = self.bytes_per_s_max.load(Ordering::Relaxed);
        if rate == 0 || bytes == 0 {
            return;
        }
        let cost_ns = u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX);
        let now = now_ns();
        let pay = |until: u64| Some(until.max(now).saturating_add(cost_ns));
        let _ = self.paid_until_ns.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay);
    }

    /// Returns the user's debt: the time by which the user is ahead of the rate limit.
    fn debt(&self) -> Duration {
        Duration::from_nanos(self.paid_until_ns.load(Ordering::Relaxed).saturating_sub(now_ns()))
    }

    /// Returns the duration for which a body must pause now.
    fn pause(&self) -> Duration {
        if self.is_paced() { self.debt().saturating_sub(RATE_SLACK) } else { Duration::ZERO }
    }

    /// Returns the numbers of open connections and of requests in flight, and the number of refused requests for each
    /// reason.
    pub(crate) fn counts(&self) -> UserRequestCounts {
        UserRequestCounts {
            connections: self.connections.load(Ordering::Relaxed),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            refused: [
                (LimitReason::Connections, self.refused_connections.load(Ordering::Relaxed)),
                (LimitReason::Requests, self.refused_requests.load(Ordering::Relaxed)),
                (LimitReason::Rate, self.refused_rate.load(Ordering::Relaxed)),
            ],
        }
    }
}

/// The counters of one user.
pub(crate) struct UserRequestCounts {
    pub(crate) connections: u32,
    pub(crate) in_flight: u32,
    pub(crate) refused: [(LimitReason, u64); 3],
}

impl UserRequestCounts {
    /// Adds the counters of another user.
    pub(crate) fn add(&mut self, other: &UserRequestCounts) {
        self.connections += other.connections;
        self.in_flight += other.in_flight;
        self.refused.iter_mut().zip(other.refused).for_each(|((_, count), (_, more))| *count += more);
    }
}

/// A request in flight. Dropping this value decrements the user's number of requests in flight.
#[derive(Debug)]
pub(crate) struct UserRequestSlot(Arc<UserResourceUsage>);

impl Drop for UserRequestSlot {
    fn drop(&mut self) {
        self.0.with_role().for_each(|usage| _ = usage.in_flight.fetch_sub(1, Ordering::Relaxed));
    }
}

/// An open connection of a user. Dropping this value decrements the user's number of connections.
#[derive(Debug)]
pub(crate) struct UserConnectionSlot(Arc<UserResourceUsage>);

impl UserConnectionSlot {
    /// Returns the user's [`UserResourceUsage::id`].
    fn user_id(&self) -> u64 {
        self.0.id
    }
}

impl Drop for UserConnectionSlot {
    fn drop(&mut self) {
        self.0.with_role().for_each(|usage| _ = usage.connections.fetch_sub(1, Ordering::Relaxed));
    }
}

/// Increments `count`, and returns true, if it is below `max`. A refused request or connection is never counted,
/// because counting it could cause the refusal of another one.
fn count_one(count: &AtomicU32, max: &AtomicU32) -> bool {
    let max = max.load(Ordering::Relaxed);
    let one_more = |count: u32| (count < max).then_some(count + 1);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

/// Returns the number of nanoseconds since the first call of this function.
fn now_ns() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(requests_max: u32, bytes_per_s_max: u64) -> Arc<UserResourceUsage> {
        let bytes_per_s_max = NonZeroU64::new(bytes_per_s_max);
        let limits = UserLimits { connections_max: 2, requests_max, bytes_per_s_max, weight: 1 };
        UserResourceUsage::new(UserLimitOverrides::default(), limits)
    }

    #[test]
    fn requests_in_flight_are_limited_and_counted() {
        let account = account(2, 0);
        let slots = [account.begin().unwrap(), account.begin().unwrap()];
        let refusal = account.begin().expect_err("two are in flight");
        assert_eq!(refusal, LimitRefusal { reason: LimitReason::Requests, retry_after_s: 1 });
        assert_eq!((account.counts().in_flight, account.counts().refused[1].1), (2, 1));
        drop(slots);
        assert_eq!(account.counts().in_flight, 0);
        account.begin().unwrap();
    }

    #[test]
    fn each_user_of_a_role_has_the_limits_of_the_role() {
        let role = account(1, 1000);
        let [one, again, other] = [7, 7, 8].map(|uid| role.of_uid(uid));
        assert!(one.id() == again.id() && one.id() != other.id());
        let slots = [one.begin().unwrap(), other.begin().unwrap()];
        let connections = [one.connect().unwrap(), again.connect().unwrap(), other.connect().unwrap()];
        assert_eq!(again.begin().expect_err("one is in flight").reason, LimitReason::Requests);
        assert_eq!(one.connect().expect_err("two are open").reason, LimitReason::Connections);
        one.charge(100_000);
        assert!(one.pause() > Duration::ZERO && other.pause() == Duration::ZERO);
        let counts = role.counts();
        assert_eq!((counts.connections, counts.in_flight), (3, 2), "the role counts all of its users");
        assert_eq!(counts.refused.map(|(_, count)| count), [1, 1, 0]);
        drop((slots, connections));
        assert_eq!((role.counts().connections, role.counts().in_flight), (0, 0));
        drop((one, again));
        assert_eq!(role.of_uid(7).pause(), Duration::ZERO, "nothing of the first user is left");
    }

    #[test]
    fn bytes_beyond_the_rate_delay_bodies_and_then_refuse_requests() {
        let account = account(10, 1000);
        assert_eq!(account.pause(), Duration::ZERO);
        account.charge(900);
        assert!(account.pause() > Duration::ZERO && account.begin().is_ok());
        account.charge(100_000);
        let refusal = account.begin().expect_err("100 s are used up");
        assert_eq!(refusal.reason, LimitReason::Rate);
        assert!((90..=101).contains(&refusal.retry_after_s), "{refusal:?}");
        assert_eq!(account.counts().in_flight, 0);
    }

    #[test]
    fn a_stated_limit_takes_precedence_over_the_gateways() {
        let stated = UserLimitOverrides { requests_max: Some(1), weight: Some(5), ..Default::default() };
        let account = UserResourceUsage::new(stated, UserLimits::default());
        let bytes_per_s_max = NonZeroU64::new(7);
        account.limit(UserLimits { requests_max: 9, bytes_per_s_max, weight: 2, ..UserLimits::default() });
        assert_eq!((account.weight(), account.is_paced()), (5, true));
        let _slot = account.begin().unwrap();
        account.begin().expect_err("one is in flight");
    }

    #[test]
    fn reasons_have_numbers() {
        for reason in LimitReason::ALL {
            assert_eq!(LimitReason::from_number(reason as u8), Some(reason));
        }
        assert_eq!(LimitReason::from_number(0), None);
    }
}
