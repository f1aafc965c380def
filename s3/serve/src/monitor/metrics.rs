//! Counters, written in the Prometheus text format (0.0.4).

use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::StatusCode;

/// Operations that have their own counters.
const OPERATIONS: [&str; 43] = [
    "other",
    "unknown",
    "AbortMultipartUpload",
    "AssumeRole",
    "AssumeRoleWithWebIdentity",
    "CompleteMultipartUpload",
    "CopyObject",
    "CreateBucket",
    "CreateMultipartUpload",
    "DeleteBucket",
    "DeleteObject",
    "DeleteObjectTagging",
    "DeleteObjects",
    "GetBucketAcl",
    "GetBucketCors",
    "GetBucketLifecycleConfiguration",
    "GetBucketLocation",
    "GetBucketPolicy",
    "GetBucketTagging",
    "GetBucketVersioning",
    "GetCallerIdentity",
    "GetObject",
    "GetObjectAcl",
    "GetObjectAttributes",
    "GetObjectTagging",
    "GetSessionToken",
    "HeadBucket",
    "HeadObject",
    "ListBuckets",
    "ListMultipartUploads",
    "ListObjectVersions",
    "ListObjects",
    "ListObjectsV2",
    "ListParts",
    "PostObject",
    "PutBucketAcl",
    "PutBucketVersioning",
    "PutObject",
    "PutObjectAcl",
    "PutObjectTagging",
    "SelectObjectContent",
    "UploadPart",
    "UploadPartCopy",
];

/// The S3 operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationCode(u8);

impl OperationCode {
    /// The code for a request whose signature was not verified.
    pub(crate) const UNKNOWN: Self = OperationCode(1);
    const OTHER: Self = OperationCode(0);
    pub(crate) const GET_OBJECT: Self = OperationCode(21);
    pub(crate) const HEAD_OBJECT: Self = OperationCode(27);
    pub(crate) const DELETE_OBJECT: Self = OperationCode(10);
    pub(crate) const PUT_OBJECT: Self = OperationCode(37);

    /// Returns the code of an operation, or the code of `other` if the operation has no counters of its own.
    pub(crate) fn named(name: &str) -> Self {
        OPERATIONS[2..].binary_search(&name).map_or(Self::OTHER, |at| OperationCode(at as u8 + 2))
    }

    pub(crate) fn name(self) -> &'static str {
        OPERATIONS[usize::from(self.0)]
    }
}

/// Statuses that each have a counter. The first element represents all other statuses.
const STATUSES: [u16; 18] =
    [0, 200, 204, 206, 304, 400, 403, 404, 405, 408, 409, 411, 412, 413, 416, 500, 501, 503];
/// The upper bounds of the intervals in the latency histogram are 2^k µs, from 32 µs to 34 s.
const FIRST_POWER: u32 = 5;
const BOUNDS: usize = 21;
/// The number of counter sets. There are several sets, so that threads do not all write to the same memory.
const SHARDS: usize = 16;

/// Counters of one operation.
#[derive(Default)]
struct OperationCounts {
    statuses: [AtomicU64; STATUSES.len()],
    /// A latency histogram: the number of requests in each interval. The last element counts requests above the highest
    /// bound.
    latencies: [AtomicU64; BOUNDS + 1],
    us: AtomicU64,
}

#[derive(Default)]
struct MetricsShard {
    operations: Vec<OperationCounts>,
    started: AtomicU64,
    finished: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// The counters of all requests of a gateway.
pub(crate) struct GatewayMetrics(Vec<MetricsShard>);

impl GatewayMetrics {
    pub(crate) fn new() -> Self {
        let shard = || MetricsShard {
            operations: OPERATIONS.iter().map(|_| OperationCounts::default()).collect(),
            ..Default::default()
        };
        GatewayMetrics((0..SHARDS).map(|_| shard()).collect())
    }

    fn shard(&self) -> &MetricsShard {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static MINE: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        &self.0[MINE.get()]
    }

    pub(super) fn started(&self) {
        add(&self.shard().started, 1);
    }

    pub(super) fn finished(
        &self,
        operation: OperationCode,
        status: StatusCode,
        took: Duration,
        received_bytes: u64,
        sent_bytes: Option<u64>,
    ) {
        let shard = self.shard();
        add(&shard.finished, 1);
        add(&shard.received_bytes, received_bytes);
        add(&shard.sent_bytes, sent_bytes.unwrap_or(0));
        let counts = &shard.operations[usize::from(operation.0)];
        let status = STATUSES.binary_search(&status.as_u16()).unwrap_or(0);
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        add(&counts.statuses[status], 1);
        add(&counts.latencies[bound_of(us)], 1);
        add(&counts.us, us);
    }

    /// Returns all counters as text. Requests that are counted during this call may be missing from some of the
    /// counters.
    pub(crate) fn text(&self, connections: usize, is_available: bool) -> String {
        let mut text = String::with_capacity(16 * 1024);
        let total = |field: fn(&MetricsShard) -> &AtomicU64| {
            self.0.iter().map(|shard| get(field(shard))).sum::<u64>()
        };
        self.put_requests(&mut text);
        self.put_latencies(&mut text);
        let in_flight = total(|shard| &shard.started).saturating_sub(total(|shard| &shard.finished));
        for (name, kind, help, value) in [
            (
                "received_bytes_total",
                "counter",
                "Bytes of request bodies with a Content-Length.",
                total(|s| &s.received_bytes),
            ),
            ("sent_bytes_total", "counter", "Bytes of responses' bodies.", total(|shard| &shard.sent_bytes)),
            ("requests_in_flight", "gauge", "Requests that are being answered.", in_flight),
            ("connections", "gauge", "Connections that are open.", connections as u64),
            (
                "root_available",
                "gauge",
                "Whether the served directory is available.",
                u64::from(is_available),
            ),
        ] {
            put_help(&mut text, name, kind, help);
            let _ = writeln!(text, "fordway_{name} {value}");
        }
        text
    }

    fn put_requests(&self, text: &mut String) {
        put_help(text, "requests_total", "counter", "Requests answered, by operation and status.");
        for (operation, name) in OPERATIONS.iter().enumerate() {
            for (status, number) in STATUSES.iter().enumerate() {
                let count = self.sum(|shard| &shard.operations[operation].statuses[status]);
                if count > 0 {
                    let status = if *number == 0 { "other".to_owned() } else { number.to_string() };
                    let labels = format!("operation=\"{name}\",status=\"{status}\"");
                    let _ = writeln!(text, "fordway_requests_total{{{labels}}} {count}");
                }
            }
        }
    }

    fn put_latencies(&self, text: &mut String) {
        let name = "request_duration_seconds";
        put_help(text, name, "histogram", "From a request's head to the end of its response.");
        for (operation, label) in OPERATIONS.iter().enumerate() {
            let of = |bound: usize| self.sum(|shard| &shard.operations[operation].latencies[bound]);
            let counts: Vec<u64> = (0..=BOUNDS).map(of).collect();
            if counts.iter().all(|count| *count == 0) {
                continue;
            }
            let mut sum = 0;
            for (bound, count) in counts.iter().enumerate() {
                sum += count;
                let le = match bound == BOUNDS {
                    true => "+Inf".to_owned(),
                    false => (f64::from(1u32 << (FIRST_POWER + bound as u32)) / 1e6).to_string(),
                };
                let _ = writeln!(text, "fordway_{name}_bucket{{operation=\"{label}\",le=\"{le}\"}} {sum}");
            }
            let seconds = self.sum(|shard| &shard.operations[operation].us) as f64 / 1e6;
            let _ = writeln!(text, "fordway_{name}_sum{{operation=\"{label}\"}} {seconds}");
            let _ = writeln!(text, "fordway_{name}_count{{operation=\"{label}\"}} {sum}");
        }
    }

    fn sum(&self, counter: impl Fn(&MetricsShard) -> &AtomicU64) -> u64 {
        self.0.iter().map(|shard| get(counter(shard))).sum()
    }
}

/// Returns the index of the first bound that is not below `us`.
fn bound_of(us: u64) -> usize {
    let power = us.max(1).next_power_of_two().trailing_zeros();
    (power.saturating_sub(FIRST_POWER) as usize).min(BOUNDS)
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

pub(crate) fn put_help(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(text, "# HELP fordway_{name} {help}\n# TYPE fordway_{name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_order_and_bounds_hold() {
        assert!(OPERATIONS[2..].is_sorted() && STATUSES.is_sorted());
        assert_eq!(
            [
                OperationCode::GET_OBJECT,
                OperationCode::HEAD_OBJECT,
                OperationCode::PUT_OBJECT,
                OperationCode::DELETE_OBJECT
            ]
            .map(OperationCode::name),
            ["GetObject", "HeadObject", "PutObject", "DeleteObject"]
        );
        assert_eq!(OperationCode::named("UploadPartCopy").name(), "UploadPartCopy");
        assert_eq!(OperationCode::named("PutBucketWebsite").name(), "other");
        assert_eq!(
            [0, 32, 33, 64, 1 << 25, (1 << 25) + 1, u64::MAX / 2].map(bound_of),
            [0, 0, 1, 1, 20, 21, 21]
        );
    }

    #[test]
    fn what_was_counted_is_written() {
        let metrics = GatewayMetrics::new();
        metrics.started();
        metrics.started();
        let took = Duration::from_micros(40);
        metrics.finished(OperationCode::named("GetObject"), StatusCode::OK, took, 3, Some(5));
        let text = metrics.text(7, true);
        for line in [
            "fordway_requests_total{operation=\"GetObject\",status=\"200\"} 1",
            "fordway_request_duration_seconds_bucket{operation=\"GetObject\",le=\"0.000032\"} 0",
            "fordway_request_duration_seconds_bucket{operation=\"GetObject\",le=\"0.000064\"} 1",
            "fordway_request_duration_seconds_bucket{operation=\"GetObject\",le=\"+Inf\"} 1",
            "fordway_request_duration_seconds_sum{operation=\"GetObject\"} 0.00004",
            "fordway_received_bytes_total 3",
            "fordway_sent_bytes_total 5",
            "fordway_requests_in_flight 1",
            "fordway_connections 7",
            "fordway_root_available 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
