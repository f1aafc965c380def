//! The combinations that lists of options make.

use fordway_load::Method;
use fordway_measure::bytes_text;
use fordway_store::{Error, ErrorKind, Result};

use crate::args::{HttpArg, MethodArg, RestArgs};

/// What PUT sends if nothing is said.
const DEFAULT_PUT_BYTES: u64 = 1024;

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) size_bytes: Option<u64>,
    pub(super) connections: u32,
    pub(super) streams: u32,
    pub(super) threads: u32,
}

impl Point {
    /// How tables call it.
    pub(super) fn label(&self, args: &RestArgs) -> String {
        let size = self.size_bytes.map_or(String::new(), |bytes| format!(" {}", bytes_text(bytes)));
        let streams = if self.streams > 1 { format!(" x {} streams", self.streams) } else { String::new() };
        let method = method(args.method).name();
        format!("{method}{size} c={}{streams} t={}", self.connections, self.threads)
    }
}

/// All combinations, sizes first. Errors: `InvalidArgument` for those that cannot be.
pub(super) fn points(args: &RestArgs) -> Result<Vec<Point>> {
    let refused = |detail: &str| Err(Error::new(ErrorKind::InvalidArgument, detail));
    if args.url.contains("{size}") && args.size.is_empty() {
        return refused("the URL has {size}, but there is no --size; name the sizes");
    }
    if args.duration.is_zero() {
        return refused("a --duration of 0 measures nothing; write one such as 10s");
    }
    let sizes: Vec<Option<u64>> = match (args.method, args.size.is_empty()) {
        (MethodArg::Put, true) => vec![Some(DEFAULT_PUT_BYTES)],
        (_, true) => vec![None],
        (_, false) => args.size.iter().copied().map(Some).collect(),
    };
    let mut points = Vec::new();
    for size_bytes in sizes {
        for &connections in &args.connections {
            for &streams in &args.streams {
                for &threads in &args.threads {
                    if threads > connections {
                        return refused("there are more --threads than --connections; raise --connections");
                    }
                    points.push(Point { size_bytes, connections, streams, threads });
                }
            }
        }
    }
    match u8::try_from(points.len()) {
        Ok(_) => Ok(points),
        Err(_) => refused("a sweep has at most 255 combinations; leave some out"),
    }
}

pub(super) const fn method(method: MethodArg) -> Method {
    match method {
        MethodArg::Get => Method::Get,
        MethodArg::Put => Method::Put,
        MethodArg::Head => Method::Head,
    }
}

pub(super) const fn lane_name(http: HttpArg) -> &'static str {
    match http {
        HttpArg::Http1 => "http/1.1",
        HttpArg::Http2 => "http/2",
        #[cfg(feature = "http3")]
        HttpArg::Http3 => "http/3",
    }
}
