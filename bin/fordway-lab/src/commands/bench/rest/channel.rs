//! The HTTP paths of the client as channels of the workload.

use std::sync::Arc;
use std::time::Duration;

use fordway_http::{Timeouts, TlsRoots};
#[cfg(feature = "http3")]
use fordway_load::Http3;
use fordway_load::{Finished, Http1, Http2, Load, Requests};
use fordway_measure::Connections;
use fordway_store::Result;
use fordway_workload::rest::{Answer, Channel, Failure, Traffic};

use crate::args::HttpArg;

/// How many connections a thread has, and how they behave.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) http: HttpArg,
    pub(super) connections: usize,
    pub(super) streams: usize,
    pub(super) timeout: Duration,
    pub(super) roots: TlsRoots,
}

/// Connects. Errors: `Unavailable`, `Timeout`, `InvalidArgument`.
pub(super) fn connect(way: &Way, requests: &Arc<Requests>) -> Result<Box<dyn Channel>> {
    let timeouts = Timeouts { first_byte: way.timeout, progress: way.timeout, ..Timeouts::default() };
    let (requests, roots) = (requests.clone(), way.roots.clone());
    let load: Box<dyn Load> = match way.http {
        HttpArg::Http1 => Box::new(Http1::connect(requests, way.connections, timeouts, roots)?),
        HttpArg::Http2 => {
            Box::new(Http2::connect(requests, (way.connections, way.streams), timeouts, roots)?)
        }
        #[cfg(feature = "http3")]
        HttpArg::Http3 => {
            Box::new(Http3::connect(requests, (way.connections, way.streams), timeouts, roots)?)
        }
    };
    Ok(Box::new(HttpChannel { load, finished: Vec::with_capacity(way.connections * way.streams) }))
}

struct HttpChannel {
    load: Box<dyn Load>,
    finished: Vec<Finished>,
}

impl Channel for HttpChannel {
    fn slots(&self) -> usize {
        self.load.slots()
    }

    fn start(&mut self, slot: usize) {
        self.load.start(slot);
    }

    fn wait(&mut self, limit: Duration, answers: &mut Vec<Answer>) -> Result<()> {
        self.load.wait(limit, &mut self.finished)?;
        answers.extend(self.finished.drain(..).map(answer));
        Ok(())
    }

    fn traffic(&self) -> Traffic {
        let traffic = self.load.traffic();
        Traffic {
            sent_bytes: traffic.sent_bytes,
            received_bytes: traffic.received_bytes,
            connections: traffic.connections,
        }
    }

    fn connections(&self) -> Option<Connections> {
        let all = self.load.tcp();
        let mut rtts: Vec<u64> = all.iter().map(|info| u64::from(info.rtt_us)).collect();
        rtts.sort_unstable();
        Some(Connections {
            count: all.len() as u64,
            rtt_us: *rtts.get(rtts.len() / 2)?,
            rtt_max_us: *rtts.last()?,
            retransmits: all.iter().map(|info| u64::from(info.retransmits)).sum(),
            mss_bytes: u64::from(all.iter().map(|info| info.mss_bytes).min()?),
        })
    }
}

fn answer(finished: Finished) -> Answer {
    let failure =
        |problem: fordway_load::Problem| Failure { kind: problem.label(), detail: problem.to_string() };
    Answer {
        slot: finished.slot,
        started: finished.started,
        first_byte: finished.first_byte,
        ended: finished.ended,
        body_bytes: finished.body_bytes,
        retries: 0,
        failure: finished.problem.map(failure),
    }
}
