//! Checks whether the operations of several clients on one key are linearizable.
//!
//! The algorithm of Wing and Gong searches for an order of all operations in which every response is correct. The order
//! must respect real time: an operation that ended before another operation began must come first. Each client runs one
//! operation at a time, so a state of the search consists of the position of each client and the value of the key. A
//! state that led to a dead end is not tried again.

use std::collections::HashSet;

/// An operation of a client on the key, with its result. Values identify versions, because no two puts have the same
/// value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryOperation {
    /// The client put this value.
    Put(u64),
    /// The client put this value with the condition that there is no object.
    Created(u64),
    /// The conditional put was refused, because there was an object.
    NotCreated,
    /// The client read this value. `None` means that there was no object.
    Read(Option<u64>),
    /// The client deleted the object, or there was no object.
    Deleted,
}

/// An event, with its times in nanoseconds on a clock shared by all clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedHistoryOperation {
    /// The operation and its result.
    pub event: HistoryOperation,
    /// A time before the operation began.
    pub began_ns: u64,
    /// A time after the operation ended.
    pub ended_ns: u64,
}

impl HistoryOperation {
    /// Returns the value of the key after this event, or `None` if the event is impossible when the value is `value`.
    fn after(self, value: Option<u64>) -> Option<Option<u64>> {
        match self {
            HistoryOperation::Put(new) => Some(Some(new)),
            HistoryOperation::Created(new) => value.is_none().then_some(Some(new)),
            HistoryOperation::NotCreated => value.is_some().then_some(value),
            HistoryOperation::Read(seen) => (seen == value).then_some(value),
            HistoryOperation::Deleted => Some(None),
        }
    }
}

/// Checks that `clients`, each a list of events in order, form a linearizable history of one key that initially has no
/// object. On failure, returns the number of events of each client in the longest valid order found.
pub fn is_linearizable(clients: &[Vec<TimedHistoryOperation>]) -> Result<(), Vec<usize>> {
    let start: (Vec<usize>, Option<u64>) = (vec![0; clients.len()], None);
    let mut longest = start.0.clone();
    let mut seen = HashSet::from([start.clone()]);
    let mut open = vec![start];
    while let Some((done, value)) = open.pop() {
        if done.iter().sum::<usize>() > longest.iter().sum() {
            longest.clone_from(&done);
        }
        let next = |client: usize| clients[client].get(done[client]);
        // The next operation must have begun before any of the remaining operations ended.
        let Some(deadline_ns) = (0..clients.len()).filter_map(next).map(|timed| timed.ended_ns).min() else {
            return Ok(());
        };
        for client in 0..clients.len() {
            let Some(timed) = next(client).filter(|timed| timed.began_ns <= deadline_ns) else { continue };
            let Some(value) = timed.event.after(value) else { continue };
            let mut done = done.clone();
            done[client] += 1;
            if seen.insert((done.clone(), value)) {
                open.push((done, value));
            }
        }
    }
    Err(longest)
}

#[cfg(test)]
mod tests {
    use super::HistoryOperation::*;
    use super::*;

    fn client(events: &[(HistoryOperation, u64, u64)]) -> Vec<TimedHistoryOperation> {
        let timed = |&(event, began_ns, ended_ns): &_| TimedHistoryOperation { event, began_ns, ended_ns };
        events.iter().map(timed).collect()
    }

    fn fits(clients: &[&[(HistoryOperation, u64, u64)]]) -> bool {
        is_linearizable(&clients.iter().map(|events| client(events)).collect::<Vec<_>>()).is_ok()
    }

    #[test]
    fn what_could_have_happened_is_accepted() {
        assert!(fits(&[]));
        assert!(fits(&[&[(Read(None), 0, 1), (Put(1), 2, 3), (Read(Some(1)), 4, 5), (Deleted, 6, 7)]]));
        // While a put is in progress, a reader may see the old or the new value. After a reader has seen the new value,
        // all later readers must also see it.
        let put: &[_] = &[(Put(1), 0, 10)];
        assert!(fits(&[put, &[(Read(None), 1, 2), (Read(Some(1)), 3, 4)]]));
        assert!(fits(&[put, &[(Put(2), 0, 10)], &[(Read(Some(2)), 11, 12)]]));
        // If two clients create the key at the same time, one client is refused. The refused operation may end first.
        assert!(fits(&[&[(Created(1), 0, 10)], &[(NotCreated, 1, 2)]]));
        assert!(fits(&[&[(Created(1), 0, 1), (Deleted, 2, 9)], &[(Created(2), 3, 4)]]));
    }

    #[test]
    fn what_cannot_have_happened_is_rejected() {
        let put: &[_] = &[(Put(1), 0, 1)];
        assert!(!fits(&[put, &[(Read(None), 2, 3)]]), "a put was lost");
        assert!(!fits(&[&[(Put(1), 0, 1), (Put(2), 2, 3)], &[(Read(Some(1)), 4, 5)]]), "a stale read");
        assert!(!fits(&[&[(Put(1), 0, 9)], &[(Read(Some(1)), 1, 2), (Read(None), 3, 4)]]), "seen, then not");
        assert!(!fits(&[&[(Created(1), 0, 9)], &[(Created(2), 0, 9)]]), "two winners");
        assert!(!fits(&[&[(NotCreated, 0, 1)]]), "refused for nothing");
        assert!(!fits(&[put, &[(Deleted, 2, 3)], &[(Read(Some(1)), 4, 5)]]), "risen from the dead");
        assert!(!fits(&[put, &[(Read(Some(7)), 0, 9)]]), "out of nowhere");
        let one_order = [(Read(Some(1)), 2, 3), (Read(Some(2)), 4, 5)];
        let another = [(Read(Some(2)), 2, 3), (Read(Some(1)), 4, 5)];
        assert!(!fits(&[&[(Put(1), 0, 1)], &[(Put(2), 0, 1)], &one_order, &another]), "two orders");
    }

    #[test]
    fn a_failure_says_how_far_it_came() {
        let clients = [client(&[(Put(1), 0, 1), (Put(2), 2, 3)]), client(&[(Read(Some(1)), 4, 5)])];
        assert_eq!(is_linearizable(&clients), Err(vec![2, 0]));
    }
}
