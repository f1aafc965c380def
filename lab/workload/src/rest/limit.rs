//! What keeps a server under load from answering more.

use fordway_measure::{Limit, ProcessCounters, rate_text};

use super::summary::Settings;

/// Share of what some processors can do above which they are busy.
const BUSY: f64 = 0.9;
/// Share of all processors below which nothing of them is short.
const IDLE: f64 = 0.5;

/// What a row came to, as far as its limit is concerned.
pub(super) struct Reached<'c> {
    pub(super) ops_per_s: f64,
    /// Whether a rate that was asked was not kept.
    pub(super) fell_behind: bool,
    pub(super) elapsed_ns: u64,
    pub(super) client: Option<&'c ProcessCounters>,
    pub(super) server: Option<&'c ProcessCounters>,
}

/// The limit, as far as the counters tell. A client has as many processors as threads, and so has a
/// server; both together have the machine's, which they share.
pub(super) fn limit(settings: &Settings, reached: &Reached) -> Limit {
    if let Some(asked) = settings.arrivals.rate().filter(|_| !reached.fell_behind) {
        let (asked, reached) = (rate_text(asked), rate_text(reached.ops_per_s));
        return named("rate", format!("{reached} of the {asked} requests/s that were asked for"));
    }
    let Some(client) = reached.client.filter(|_| reached.elapsed_ns > 0) else {
        return named("cannot tell", "the CPU time of this process is not known".to_owned());
    };
    let processors = |used: &ProcessCounters| used.cpu_ns as f64 / reached.elapsed_ns as f64;
    let cpus = settings.cpus as f64;
    let (client, client_room) = (processors(client), cpus.min(settings.threads as f64));
    let mut evidence = format!("client {client:.2} of {client_room} processors");
    let Some(counters) = reached.server else {
        let is_busy = client >= BUSY * client_room;
        let name = if is_busy { "client cpu" } else { "cannot tell" };
        return named(name, evidence + "; the server was not watched (--server-pid)");
    };
    let (server, server_room) = (processors(counters), cpus.min(counters.threads.max(1) as f64));
    evidence += &format!(", server {server:.2} of {server_room}, machine {cpus}");
    let name = match (client >= BUSY * client_room, server >= BUSY * server_room) {
        (true, true) => "client and server cpu",
        (true, false) => "client cpu",
        (false, true) => "server cpu",
        _ if client + server >= BUSY * cpus => "client and server cpu",
        _ if client + server < IDLE * client_room.min(server_room) => "waiting",
        _ => "cannot tell",
    };
    named(name, evidence)
}

fn named(name: &str, evidence: String) -> Limit {
    Limit { name: name.to_owned(), evidence }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::Arrivals;

    fn counters(cpu_ns: u64, threads: u64) -> ProcessCounters {
        ProcessCounters {
            scope: String::new(),
            covered_ns: 1_000,
            threads,
            cpu_ns,
            user_ns: 0,
            system_ns: 0,
            voluntary_switches: 0,
            involuntary_switches: 0,
            rss_bytes: 0,
            max_rss_bytes: 0,
            cycles: None,
            reference_cycles: None,
            instructions: None,
            cache_misses: None,
        }
    }

    /// Of a client of one thread on 4 processors, in 1,000 ns.
    fn name(arrivals: Arrivals, fell_behind: bool, client_ns: u64, server: Option<(u64, u64)>) -> String {
        let settings = Settings {
            lane: String::new(),
            phase: String::new(),
            arrivals,
            uploads: false,
            connections: 1,
            streams: 1,
            threads: 1,
            cpus: 4,
        };
        let client = counters(client_ns, 2);
        let server = server.map(|(ns, threads)| counters(ns, threads));
        let (client, server) = (Some(&client), server.as_ref());
        limit(&settings, &Reached { ops_per_s: 1.0, fell_behind, elapsed_ns: 1_000, client, server }).name
    }

    #[test]
    fn each_limit_is_named() {
        let closed = |client_ns, server| name(Arrivals::Closed, false, client_ns, server);
        assert_eq!(closed(950, Some((500, 1))), "client cpu");
        assert_eq!(closed(700, Some((980, 1))), "server cpu");
        assert_eq!(closed(950, Some((980, 1))), "client and server cpu");
        assert_eq!(closed(800, Some((2_900, 8))), "client and server cpu");
        assert_eq!(closed(100, Some((100, 8))), "waiting");
        assert_eq!(closed(700, Some((700, 8))), "cannot tell");
        assert_eq!((closed(950, None), closed(100, None)), ("client cpu".into(), "cannot tell".into()));
        assert_eq!(name(Arrivals::Fixed(1.0), false, 990, Some((990, 1))), "rate");
        assert_eq!(name(Arrivals::Fixed(9.0), true, 100, Some((990, 1))), "server cpu");
    }
}
