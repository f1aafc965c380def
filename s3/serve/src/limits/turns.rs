//! Turn-taking among users on a thread that serves many connections.
//!
//! While a thread serves one user, or has idle time, requests run in the order in which they arrive. If several users
//! keep the thread busy, they take turns (start-time fair queueing). Each request advances the virtual clock of its
//! user, by a step that is inversely proportional to the user's weight. The request with the earliest due time runs
//! next. Before each turn, the thread polls all sockets. A request of a user who has used less than their share
//! therefore waits for one request of another user, and not for all requests that have arrived.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{UserResourceUsage, WEIGHT_MAX};

/// The number of consecutive requests of one user after which a busy thread no longer counts as shared among users.
const MEMORY_REQUESTS: u32 = 4096;
/// The amount by which a request advances the virtual clock of a user with weight 1.
const COST: u64 = WEIGHT_MAX as u64 * 1000;

thread_local! {
    static LATEST: Cell<LatestRequestUser> = const { Cell::new(LatestRequestUser { id: 0, alike: 0, is_shared: false }) };
    static QUEUE: Arc<Mutex<FairRequestQueue>> = Arc::default();
}

/// The user who sent a thread's latest request.
#[derive(Clone, Copy)]
struct LatestRequestUser {
    /// The id of the user's [`UserResourceUsage`]; 0 if there has been no request since the thread last had idle time.
    id: u64,
    /// The number of requests since the user last changed.
    alike: u32,
    /// Whether several users have sent recent requests. Idle time of the thread and [`MEMORY_REQUESTS`] consecutive
    /// requests of one user reset this flag.
    is_shared: bool,
}

impl LatestRequestUser {
    /// Returns the state after a request of a user.
    fn after(self, id: u64) -> Self {
        if self.id != id {
            return LatestRequestUser { id, alike: 0, is_shared: self.is_shared || self.id != 0 };
        }
        let alike = self.alike.saturating_add(1);
        LatestRequestUser { id, alike, is_shared: self.is_shared && alike < MEMORY_REQUESTS }
    }
}

/// The requests that wait for a turn on one thread. Another thread accesses this queue only if a waiting connection
/// moves to that thread.
#[derive(Default)]
struct FairRequestQueue {
    clock: u64,
    /// The virtual time at which each user's next request is due.
    due: HashMap<u64, u64>,
    waiting: BinaryHeap<Reverse<WaitingRequest>>,
    /// The sequence number of the latest waiting request. Requests that are due at the same time run in the order of
    /// their sequence numbers.
    number: u64,
    /// The sequence number of the waiting request that has the turn.
    granted: Option<u64>,
}

struct WaitingRequest {
    due: u64,
    number: u64,
    waker: Waker,
}

impl PartialEq for WaitingRequest {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for WaitingRequest {}

impl PartialOrd for WaitingRequest {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for WaitingRequest {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

impl FairRequestQueue {
    /// Returns the due time and the sequence number of a user's new request, or `None` if the request runs immediately.
    fn decide(&mut self, user: u64, weight: u32) -> Option<(u64, u64)> {
        let due = self.due.get(&user).map_or(self.clock, |due| (*due).max(self.clock));
        self.due.insert(user, due + COST / u64::from(weight.clamp(1, WEIGHT_MAX)));
        if due <= self.clock {
            return None;
        }
        self.number += 1;
        Some((due, self.number))
    }

    /// Adds a waiting request. The request gets the turn if no other request has the turn.
    fn wait(&mut self, due: u64, number: u64, waker: Waker) {
        self.waiting.push(Reverse(WaitingRequest { due, number, waker }));
        if self.granted.is_none() {
            self.grant();
        }
    }

    /// Gives the turn to the request that is due next.
    fn grant(&mut self) {
        self.granted = None;
        if let Some(Reverse(next)) = self.waiting.pop() {
            self.clock = self.clock.max(next.due);
            self.granted = Some(next.number);
            next.waker.wake();
        }
    }

    /// Ends the turn of a request, or the wait of a request that does not have the turn yet.
    fn end(&mut self, number: u64) {
        match self.granted == Some(number) {
            true => self.grant(),
            false => self.waiting.retain(|Reverse(waiting)| waiting.number != number),
        }
    }

    /// Resets the virtual clocks of all users if no request waits.
    fn forget(&mut self) {
        if self.waiting.is_empty() && self.granted.is_none() {
            self.due.clear();
        }
    }
}

/// Records that the calling thread is idle. The next request of every user then runs immediately.
pub(crate) fn forget_turns() {
    let was_shared = LATEST.replace(LatestRequestUser { id: 0, alike: 0, is_shared: false }).is_shared;
    if was_shared {
        QUEUE.with(|queue| locked(queue).forget());
    }
}

/// Records a request on a connection. `id` identifies the [`UserResourceUsage`] of the connection's latest user; 0
/// means that there has been no user. Returns whether the request must take its turn, because several users keep the
/// calling thread busy. Cost: a few instructions.
pub(crate) fn is_shared(id: u64) -> bool {
    if id == 0 {
        return false;
    }
    let latest = LATEST.get().after(id);
    LATEST.set(latest);
    latest.is_shared
}

/// Waits until it is the user's turn on the calling thread.
pub(crate) async fn take_turn(user: Option<Arc<UserResourceUsage>>) {
    let Some(user) = user else { return };
    let queue = QUEUE.with(Arc::clone);
    let decision = locked(&queue).decide(user.id(), user.weight());
    if let Some((due, number)) = decision {
        RequestTurn { queue, due, number, is_waiting: false }.run().await;
    }
}

fn locked(queue: &Mutex<FairRequestQueue>) -> MutexGuard<'_, FairRequestQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that waits for its turn or has the turn. Dropping this value gives the turn to the next request.
struct RequestTurn {
    queue: Arc<Mutex<FairRequestQueue>>,
    due: u64,
    number: u64,
    is_waiting: bool,
}

impl RequestTurn {
    async fn run(mut self) {
        poll_fn(|context| self.poll(context)).await;
        // The thread polls the sockets of all clients before the request runs.
        tokio::task::yield_now().await;
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<()> {
        // A connection that has moved to another thread does not wait.
        if !QUEUE.with(|queue| Arc::ptr_eq(queue, &self.queue)) {
            return Poll::Ready(());
        }
        let mut queue = locked(&self.queue);
        if !std::mem::replace(&mut self.is_waiting, true) {
            queue.wait(self.due, self.number, context.waker().clone());
        }
        if queue.granted == Some(self.number) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for RequestTurn {
    fn drop(&mut self) {
        locked(&self.queue).end(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::limits::{UserLimitOverrides, UserLimits};

    fn account(weight: u32) -> Arc<UserResourceUsage> {
        UserResourceUsage::new(UserLimitOverrides::default(), UserLimits { weight, ..Default::default() })
    }

    /// Runs the requests of connections on one thread. Each element of `connections` contains a user, and the number of
    /// requests that the connection sends one after another. Returns the users in the order in which their requests
    /// ran.
    fn order(connections: &[(&Arc<UserResourceUsage>, usize)]) -> Vec<u64> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        runtime.block_on(async {
            let mut all = tokio::task::JoinSet::new();
            for (user, count) in connections {
                let (user, count, ran) = ((*user).clone(), *count, ran.clone());
                all.spawn(async move {
                    for _ in 0..count {
                        if is_shared(user.id()) {
                            take_turn(Some(user.clone())).await;
                        }
                        ran.lock().unwrap().push(user.id());
                        // The client sends the next request immediately.
                        tokio::task::yield_now().await;
                    }
                });
            }
            while all.join_next().await.is_some() {}
        });
        Arc::into_inner(ran).unwrap().into_inner().unwrap()
    }

    #[test]
    fn a_user_with_one_connection_gets_half_beside_one_with_fifty() {
        let (noisy, quiet) = (account(1), account(1));
        let mut connections = vec![(&noisy, 40); 50];
        connections.push((&quiet, 200));
        let ran = order(&connections);
        assert_eq!(ran.len(), 2200);
        let end = ran.iter().rposition(|user| *user == quiet.id()).unwrap();
        let others = ran[..end].iter().filter(|user| **user == noisy.id()).count();
        // At first, all virtual clocks are equal, so one request of each connection runs immediately.
        assert!(others <= 50 + 200 + 10, "{others} requests of the other user ran before");
    }

    #[test]
    fn a_larger_weight_is_a_larger_share() {
        let (light, heavy) = (account(1), account(3));
        let mut connections = vec![(&light, 100); 10];
        connections.extend(vec![(&heavy, 60); 10]);
        let ran = order(&connections);
        let end = ran.iter().rposition(|user| *user == heavy.id()).unwrap();
        let others = ran[..end].iter().filter(|user| **user == light.id()).count();
        assert!((180..=230).contains(&others), "{others} requests of the light user next to 600");
    }

    #[test]
    fn one_user_never_waits() {
        let only = account(1);
        assert_eq!(order(&vec![(&only, 100); 20]).len(), 2000);
        QUEUE.with(|queue| assert!(locked(queue).due.is_empty()));
    }

    #[test]
    fn a_request_that_ends_early_gives_its_turn_to_the_next() {
        let mut queue = FairRequestQueue::default();
        let waker = Waker::noop();
        for number in 1..=3 {
            queue.wait(number, number, waker.clone());
        }
        assert_eq!(queue.granted, Some(1));
        queue.end(2);
        queue.end(1);
        assert_eq!((queue.granted, queue.clock), (Some(3), 3));
        queue.end(3);
        assert_eq!(queue.granted, None);
    }

    #[test]
    fn a_thread_that_was_idle_lets_everybody_go_at_once() {
        let after = |ids: &[u64]| {
            ids.iter()
                .fold(LatestRequestUser { id: 0, alike: 0, is_shared: false }, |latest, id| latest.after(*id))
        };
        assert!(!after(&[7, 7, 7]).is_shared && after(&[7, 8]).is_shared && after(&[7, 8, 8]).is_shared);
        assert!(!after(&[&[7, 8][..], &[8; MEMORY_REQUESTS as usize]].concat()).is_shared);
    }
}
