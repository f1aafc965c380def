//! Counters for limits, in the Prometheus text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use super::metrics::put_help;
use crate::limits::{LimitCounters, UserRequestCounts};

/// Appends the counters for limits to `text`. Users without requests are left out. The counters of users with the same
/// name are added up, because the format does not allow two series with the same labels.
pub(crate) fn put_limits<'u>(
    text: &mut String,
    counters: &LimitCounters,
    users: impl IntoIterator<Item = (&'u str, UserRequestCounts)>,
) {
    for (name, help, counter) in [
        ("slow_bodies_total", "Bodies ended because the client was too slow.", &counters.slow_bodies),
        (
            "connections_refused_total",
            "Connections refused because their address has too many without a valid signature.",
            &counters.refused_connections,
        ),
        (
            "connections_closed_total",
            "Connections closed after too many requests without a valid signature.",
            &counters.closed_connections,
        ),
    ] {
        put_help(text, name, "counter", help);
        // Writing to a string does not fail.
        let _ = writeln!(text, "fordway_{name} {}", counter.load(Ordering::Relaxed));
    }
    let mut by_name = BTreeMap::<_, UserRequestCounts>::new();
    for (user, counts) in users {
        by_name.entry(user).and_modify(|known| known.add(&counts)).or_insert(counts);
    }
    put_gauge(text, ("user_connections", "A user's open connections."), &by_name, |counts| {
        counts.connections
    });
    put_gauge(text, ("user_requests_in_flight", "A user's requests in flight."), &by_name, |counts| {
        counts.in_flight
    });
    let name = "user_requests_refused_total";
    put_help(text, name, "counter", "Requests refused because a user was at a limit.");
    for (user, counts) in &by_name {
        for (reason, count) in counts.refused.iter().filter(|(_, count)| *count > 0) {
            let labels = format!("user=\"{}\",limit=\"{}\"", label(user), reason.name());
            let _ = writeln!(text, "fordway_{name}{{{labels}}} {count}");
        }
    }
}

/// Appends one number for each user for whom it is not 0.
fn put_gauge(
    text: &mut String,
    (name, help): (&str, &str),
    users: &BTreeMap<&str, UserRequestCounts>,
    number: impl Fn(&UserRequestCounts) -> u32,
) {
    put_help(text, name, "gauge", help);
    for (user, count) in users.iter().map(|(user, counts)| (user, number(counts))).filter(|(_, n)| *n > 0) {
        let _ = writeln!(text, "fordway_{name}{{user=\"{}\"}} {count}", label(user));
    }
}

/// Escapes the value of a label.
fn label(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LimitReason;

    #[test]
    fn users_at_a_limit_are_named() {
        let counts = |in_flight, requests, rate| UserRequestCounts {
            connections: 2 * in_flight,
            in_flight,
            refused: [
                (LimitReason::Connections, 0),
                (LimitReason::Requests, requests),
                (LimitReason::Rate, rate),
            ],
        };
        let counters = LimitCounters::default();
        counters.slow_bodies.store(3, Ordering::Relaxed);
        let mut text = String::new();
        let users = [
            ("b\"c", counts(0, 2, 0)),
            ("a", counts(1, 0, 0)),
            ("idle", counts(0, 0, 0)),
            ("b\"c", counts(1, 3, 1)),
        ];
        put_limits(&mut text, &counters, users);
        for line in [
            "fordway_slow_bodies_total 3",
            "fordway_user_connections{user=\"a\"} 2",
            "fordway_user_requests_in_flight{user=\"a\"} 1",
            "fordway_user_requests_refused_total{user=\"b\\\"c\",limit=\"requests\"} 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("idle"));
    }
}
