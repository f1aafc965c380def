//! Paths that read and paths that write. Before each put, its object is deleted outside the measured time, so each put
//! creates a new object.

use fordway_http::HttpVersion;
use fordway_posix::Durability;
use fordway_store::{ChecksumAlgorithm, ETagPolicy, PutOptions, Result};
use fordway_wire::node::INLINE_BYTES_MAX;
use fordway_workload::ledger::PathDecomposition;

use super::{LedgerObjectLocation, PreparedLedgerRun, RECORD_BYTES, RECORD_OVERHEAD_BYTES, names};
use crate::commands::gateway::GatewayProcess;
use crate::commands::ledger::components::ObjectOperation;
use crate::commands::ledger::components::framing::{
    Http2FramingComponent, MemoryPipeComponent, NodeFramingComponent, TlsRecordComponent, WHOLE_BYTES_MAX,
};
use crate::commands::ledger::components::request::{
    HttpMessageHeads, S3LayerComponent, S3RequestTemplate, SignatureCheckComponent,
};
use crate::commands::ledger::components::round_trip::{
    EventLoopRoundTripComponent, MessageSizeFunction, MessageSizes, TcpRoundTripComponent,
    UnixRoundTripComponent,
};
use crate::commands::ledger::components::storage::{
    AtomicFileCreateComponent, FileOpenComponent, FileWriteComponent, MeasuredObject, ObjectGetComponent,
    ObjectOpenComponent, ObjectPutComponent, PiecewisePreadComponent, PosixReadComponent, PreadComponent,
};
use crate::commands::ledger::echo::ReplySendMethod;

/// The maximum size, in bytes, of content that a gateway sends in one call together with the head, both on the node
/// lane and over HTTP.
const INLINE_BYTES: u64 = INLINE_BYTES_MAX as u64;
/// The maximum size, in bytes, of content that the http lane's client receives together with a head and therefore
/// copies.
const COPIED_BYTES_MAX: u64 = 16 << 10;

/// The components of a get whose content the gateway reads in pieces.
#[cfg(feature = "http3")]
pub(super) const GET_PIECES: [&str; 2] = [names::OBJECT_OPEN, names::PREAD_IN_PIECES];
/// The components of a put over HTTP that handle content. Both sides compute the checksum.
pub(super) const PUT_CONTENT: [&str; 2] = [names::EMBEDDED_PUT_CHECKSUM, names::CRC64NVME];

impl PreparedLedgerRun {
    fn file_components(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.add(names::FILE_OPEN, "open by absolute path, fstat, close", || {
            Ok(Box::new(FileOpenComponent::new(&site.files)))
        })?;
        self.add(names::PREAD, "pread of an open file in the page cache", || {
            Ok(Box::new(PreadComponent::new(&site.files)))
        })
    }

    pub(super) fn posix(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.file_components(site)?;
        let description = "a plain file: open by absolute path, fstat, pread, close";
        self.add(names::POSIX_GET, description, || Ok(Box::new(PosixReadComponent::new(&site.files))))?;
        self.paths.push(PathDecomposition::new(names::POSIX_GET).with(names::FILE_OPEN).with(names::PREAD));
        Ok(())
    }

    pub(super) fn embedded_components(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.file_components(site)?;
        let description = "an object read by the store in this process: held directory, no server";
        self.add(names::EMBEDDED_GET, description, || {
            Ok(Box::new(ObjectGetComponent::new(site.objects.clone(), None)))
        })?;
        let description = "an object opened and described by the store, and closed: no content";
        self.add(names::OBJECT_OPEN, description, || Ok(Box::new(ObjectOpenComponent(site.objects.clone()))))
    }

    pub(super) fn embedded(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.embedded_components(site)?;
        self.paths
            .push(PathDecomposition::new(names::EMBEDDED_GET).with(names::FILE_OPEN).with(names::PREAD));
        Ok(())
    }

    pub(super) fn node(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.embedded_components(site)?;
        let mut frames = NodeFramingComponent::new(ObjectOperation::Get, &site.bucket)?;
        let description = "request and response of the node lane written and read, in memory";
        self.add(names::NODE_FRAMES, description, || {
            Ok(Box::new(NodeFramingComponent::new(ObjectOperation::Get, &site.bucket)?))
        })?;
        let sizes = move |size_bytes: u64| {
            let (request_bytes, head_bytes) = frames.lengths(size_bytes)?;
            let form =
                if size_bytes > INLINE_BYTES { ReplySendMethod::Descriptor } else { ReplySendMethod::Bytes };
            let rest_bytes = if form == ReplySendMethod::Descriptor { size_bytes as usize } else { 0 };
            Ok(MessageSizes { request_bytes, head_bytes, body_bytes: size_bytes as usize, form, rest_bytes })
        };
        let description = "messages as long as the node lane's to a process that only responds, and back; \
                           over 64 KiB a descriptor in place of the content";
        self.add(names::UNIX_ROUND_TRIP, description, || {
            Ok(Box::new(UnixRoundTripComponent::new(site.dir, &site.largest, Box::new(sizes))?))
        })?;
        let gateway = GatewayProcess::start_node(site.root, ETagPolicy::Fast, Durability::None)?;
        self.whole(names::NODE_GET, "the node lane, a gateway process", site, gateway)?;
        self.paths.push(
            PathDecomposition::new(names::NODE_GET)
                .with(names::EMBEDDED_GET)
                .with(names::UNIX_ROUND_TRIP)
                .with(names::NODE_FRAMES)
                .with_up_to(names::MEMORY_COPY, INLINE_BYTES),
        );
        Ok(())
    }

    /// Adds the component that measures the whole get through a gateway.
    pub(super) fn whole(
        &mut self,
        name: &str,
        description: &str,
        site: &LedgerObjectLocation<'_>,
        gateway: GatewayProcess,
    ) -> Result<()> {
        let objects = MeasuredObject::new(gateway.client()?, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        self.gateways.push(gateway);
        self.add(name, description, || Ok(Box::new(ObjectGetComponent::new(objects, Some(pid)))))
    }

    /// Adds the components for the heads and signatures of requests to a gateway without TLS; returns the request.
    pub(super) fn get_request(&mut self, site: &LedgerObjectLocation<'_>) -> Result<S3RequestTemplate> {
        let request = self.request(site, ObjectOperation::Get)?;
        self.heads(names::HTTP1_HEADS, &request)?;
        self.add(names::VERIFY, "the same signature verified", || {
            Ok(Box::new(SignatureCheckComponent::new(&request)))
        })?;
        Ok(request)
    }

    pub(super) fn http(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.embedded_components(site)?;
        let request = self.get_request(site)?;
        let description = "messages as long as HTTP/1.1's over loopback TCP to a process that only responds, \
                           and back; content over 64 KiB by sendfile";
        self.add(names::TCP_ROUND_TRIP, description, || {
            Ok(Box::new(TcpRoundTripComponent::new(&site.largest, http_messages(request))?))
        })?;
        let gateway = PreparedLedgerRun::gateway(site.root)?;
        self.whole(names::HTTP_GET, "S3 over HTTP/1.1 on loopback, a gateway process", site, gateway)?;
        self.paths.push(with_get_request(PathDecomposition::new(names::HTTP_GET), names::TCP_ROUND_TRIP));
        Ok(())
    }

    pub(super) fn https(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.embedded_components(site)?;
        let request = self.get_request(site)?;
        let sizes = move |size_bytes: u64| {
            let HttpMessageHeads { asked, answered } = request.heads(size_bytes)?;
            let records = size_bytes.div_ceil(RECORD_BYTES) + 1;
            let body_bytes = (size_bytes + records * RECORD_OVERHEAD_BYTES) as usize;
            let request_bytes = asked.len() + RECORD_OVERHEAD_BYTES as usize;
            Ok(MessageSizes {
                request_bytes,
                head_bytes: answered.len(),
                body_bytes,
                form: ReplySendMethod::Bytes,
                rest_bytes: 0,
            })
        };
        let description = "the same with all content from memory, as TLS needs it";
        self.add(names::TCP_ROUND_TRIP_NO_SENDFILE, description, || {
            Ok(Box::new(TcpRoundTripComponent::new(&site.largest, Box::new(sizes))?))
        })?;
        let description = "content encrypted and then decrypted by TLS, both in memory";
        self.add(names::TLS, description, || Ok(Box::new(TlsRecordComponent::new(&site.contents)?)))?;
        let gateway = PreparedLedgerRun::tls_gateway(site.root)?;
        self.whole(
            names::HTTPS_GET,
            "S3 over HTTP/1.1 and TLS on loopback, a gateway process",
            site,
            gateway,
        )?;
        let path = PathDecomposition::new(names::HTTPS_GET)
            .with(names::OBJECT_OPEN)
            .with(names::PREAD)
            .with(names::TLS);
        self.paths.push(with_request(path.with(names::TCP_ROUND_TRIP_NO_SENDFILE)));
        Ok(())
    }

    /// Adds the components that are common to gets over HTTP/2 and HTTP/3, except the round trips. Returns the request.
    pub(super) fn multiplexed_get_request(
        &mut self,
        site: &LedgerObjectLocation<'_>,
    ) -> Result<S3RequestTemplate> {
        self.embedded_components(site)?;
        let request = self.get_request(site)?;
        let description = "pread of an open file in the page cache, 64 KiB at a time";
        self.add(names::PREAD_IN_PIECES, description, || {
            Ok(Box::new(PiecewisePreadComponent::new(&site.files)))
        })?;
        let description = "a GET without its content answered by the S3 layer in memory, signature verified";
        self.add(names::S3_LAYER, description, || {
            Ok(Box::new(S3LayerComponent::new(ObjectOperation::Get, &site.bucket, &site.contents)?))
        })?;
        Ok(request)
    }

    pub(super) fn http2(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        let request = self.multiplexed_get_request(site)?;
        self.http2_components(site, &request)?;
        let gateway = PreparedLedgerRun::gateway(site.root)?.asked_in(HttpVersion::Http2);
        self.whole(
            names::HTTP2_GET,
            "S3 over HTTP/2 in the clear on loopback, a gateway process",
            site,
            gateway,
        )?;
        self.paths.push(
            PathDecomposition::new(names::HTTP2_GET)
                .with(names::OBJECT_OPEN)
                .with(names::PREAD_IN_PIECES)
                .with(names::TCP_ROUND_TRIP_EVENT_LOOPS)
                .with(names::HTTP2_FRAMES)
                // The component sends its frames through a pipe in memory, which is not part of the path.
                .less(names::MEMORY_PIPE)
                .with(names::HTTP1_HEADS)
                .with(names::SIGN)
                .with(names::S3_LAYER),
        );
        Ok(())
    }

    fn http2_components(
        &mut self,
        site: &LedgerObjectLocation<'_>,
        request: &S3RequestTemplate,
    ) -> Result<()> {
        let frames = || Http2FramingComponent::new(request, &site.contents);
        let description = "heads compressed and content in frames of HTTP/2, written and read by both \
                           libraries, through a pipe in memory";
        self.add(names::HTTP2_FRAMES, description, || Ok(Box::new(frames()?)))?;
        let description = "as many bytes through that pipe alone";
        self.add(names::MEMORY_PIPE, description, || Ok(Box::new(MemoryPipeComponent::new(frames()?)?)))?;
        let mut counted = frames()?;
        let sizes = move |size_bytes: u64| {
            let (request_bytes, answer_bytes) = counted.lengths(size_bytes)?;
            let body_bytes = size_bytes as usize;
            let head_bytes = answer_bytes - body_bytes;
            Ok(MessageSizes {
                request_bytes,
                head_bytes,
                body_bytes,
                form: ReplySendMethod::Bytes,
                rest_bytes: 0,
            })
        };
        let description = "messages as long as HTTP/2's over loopback TCP, 64 KiB at a time, by the event loop of \
                           a library on both sides";
        self.add(names::TCP_ROUND_TRIP_EVENT_LOOPS, description, || {
            Ok(Box::new(EventLoopRoundTripComponent::new(&site.largest, Box::new(sizes))?))
        })
    }
}

/// Returns the message sizes of a get over HTTP/1.1 without TLS.
pub(super) fn http_messages(request: S3RequestTemplate) -> MessageSizeFunction {
    Box::new(move |size_bytes: u64| {
        let HttpMessageHeads { asked, answered } = request.heads(size_bytes)?;
        let form = if size_bytes > INLINE_BYTES { ReplySendMethod::File } else { ReplySendMethod::Bytes };
        let (head_bytes, body_bytes) = (answered.len(), size_bytes as usize);
        Ok(MessageSizes { request_bytes: asked.len(), head_bytes, body_bytes, form, rest_bytes: 0 })
    })
}

/// Adds the components of a get over HTTP/1.1 without TLS to `path`; the `trip` component is the round trip.
pub(super) fn with_get_request(path: PathDecomposition, trip: &str) -> PathDecomposition {
    with_request(path.with(names::OBJECT_OPEN).with_up_to(names::PREAD, INLINE_BYTES).with(trip))
}

/// Adds the components that are part of every HTTP/1.1 request.
fn with_request(path: PathDecomposition) -> PathDecomposition {
    path.with(names::HTTP1_HEADS)
        .with(names::SIGN)
        .with(names::VERIFY)
        .with_up_to(names::MEMORY_COPY, COPIED_BYTES_MAX)
}

impl PreparedLedgerRun {
    fn write_components(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        let dir = site.dir.join("published");
        let description = "an empty unnamed file: opened, its time set, described, linked, closed";
        self.add(names::FILE_PUBLISH, description, || Ok(Box::new(AtomicFileCreateComponent::new(&dir)?)))?;
        let description = "pwrite to a new file without a name";
        self.add(names::PWRITE, description, || {
            Ok(Box::new(FileWriteComponent::new(site.dir, &site.contents)?))
        })?;
        let description = "an object written by the store in this process: held directory, no server";
        self.add(names::EMBEDDED_PUT, description, || {
            Ok(Box::new(ObjectPutComponent::new(site.objects.clone(), PutOptions::default(), None)))
        })
    }

    pub(super) fn embedded_put(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.write_components(site)?;
        self.paths
            .push(PathDecomposition::new(names::EMBEDDED_PUT).with(names::FILE_PUBLISH).with(names::PWRITE));
        Ok(())
    }

    pub(super) fn node_put(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.write_components(site)?;
        let mut frames = NodeFramingComponent::new(ObjectOperation::Put, &site.bucket)?;
        let description = "request and response of a put by the node lane written and read, in memory";
        self.add(names::NODE_FRAMES_PUT, description, || {
            Ok(Box::new(NodeFramingComponent::new(ObjectOperation::Put, &site.bucket)?))
        })?;
        let sizes = move |size_bytes: u64| {
            let (request_bytes, head_bytes) = frames.lengths(size_bytes)?;
            let size = size_bytes as usize;
            let (content, form) = if size_bytes > WHOLE_BYTES_MAX {
                (0, ReplySendMethod::Descriptor)
            } else {
                (size, ReplySendMethod::Bytes)
            };
            let request_bytes = request_bytes + content;
            Ok(MessageSizes { request_bytes, head_bytes, body_bytes: 0, form, rest_bytes: size })
        };
        let description = "messages as long as for puts on the node lane, content included, to a process \
                           that only answers, and back; over 128 KiB a descriptor comes back for the next content";
        self.add(names::UNIX_ROUND_TRIP_PUT, description, || {
            Ok(Box::new(UnixRoundTripComponent::new(site.dir, &site.largest, Box::new(sizes))?))
        })?;
        let gateway = GatewayProcess::start_node(site.root, ETagPolicy::Fast, Durability::None)?;
        let objects = MeasuredObject::new(gateway.client()?, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        self.gateways.push(gateway);
        self.add(names::NODE_PUT, "the node lane, a gateway process", || {
            let put = ObjectPutComponent::new(objects, PutOptions::default(), Some(pid));
            Ok(Box::new(put.written_here_over(WHOLE_BYTES_MAX, &site.objects)))
        })?;
        let path = PathDecomposition::new(names::NODE_PUT)
            .with(names::EMBEDDED_PUT)
            .with(names::UNIX_ROUND_TRIP_PUT);
        self.paths.push(path.with(names::NODE_FRAMES_PUT));
        Ok(())
    }

    /// Adds the components that are common to all puts over HTTP, except the round trips. Returns the request.
    pub(super) fn put_request(&mut self, site: &LedgerObjectLocation<'_>) -> Result<S3RequestTemplate> {
        let description = "an object written by the store in this process, with a checksum that is computed \
                           and kept";
        self.add(names::EMBEDDED_PUT_CHECKSUM, description, || {
            let checksum = Some(ChecksumAlgorithm::Crc64Nvme);
            let options = PutOptions { checksum, ..PutOptions::default() };
            Ok(Box::new(ObjectPutComponent::new(site.objects.clone(), options, None)))
        })?;
        let description = "a PUT without its content answered by the S3 layer in memory, signature verified";
        self.add(names::S3_LAYER_PUT, description, || {
            Ok(Box::new(S3LayerComponent::new(ObjectOperation::Put, &site.bucket, &site.contents)?))
        })?;
        let request = self.request(site, ObjectOperation::Put)?;
        self.heads(names::HTTP1_HEADS_PUT, &request)?;
        Ok(request)
    }

    /// Adds the components of a put over HTTP/1.1.
    fn http1_put_components(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        let request = self.put_request(site)?;
        let sizes = move |size_bytes: u64| {
            let HttpMessageHeads { asked, answered } = request.heads(size_bytes)?;
            let (size, form) = (size_bytes as usize, ReplySendMethod::Bytes);
            let (request_bytes, head_bytes) = (asked.len() + size, answered.len());
            Ok(MessageSizes { request_bytes, head_bytes, body_bytes: 0, form, rest_bytes: size })
        };
        let description = "messages as long as for puts over HTTP/1.1, content included, over loopback TCP \
                           to a process that only responds, and back";
        self.add(names::TCP_ROUND_TRIP_PUT, description, || {
            Ok(Box::new(TcpRoundTripComponent::new(&site.largest, Box::new(sizes))?))
        })
    }

    /// Adds the component that measures the whole put through a gateway that writes the files itself.
    pub(super) fn whole_put(
        &mut self,
        name: &str,
        description: &str,
        site: &LedgerObjectLocation<'_>,
        gateway: GatewayProcess,
    ) -> Result<()> {
        let objects = MeasuredObject::new(gateway.client()?, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        self.gateways.push(gateway);
        self.add(name, description, || {
            Ok(Box::new(ObjectPutComponent::new(objects, PutOptions::default(), Some(pid))))
        })
    }

    pub(super) fn http_put(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.http1_put_components(site)?;
        let gateway = PreparedLedgerRun::gateway(site.root)?;
        self.whole_put(names::HTTP_PUT, "S3 over HTTP/1.1 on loopback, a gateway process", site, gateway)?;
        self.paths.push(with_put_request(PathDecomposition::new(names::HTTP_PUT)));
        Ok(())
    }

    pub(super) fn https_put(&mut self, site: &LedgerObjectLocation<'_>) -> Result<()> {
        self.http1_put_components(site)?;
        let description = "content encrypted and then decrypted by TLS, both in memory";
        self.add(names::TLS, description, || Ok(Box::new(TlsRecordComponent::new(&site.contents)?)))?;
        let gateway = PreparedLedgerRun::tls_gateway(site.root)?;
        self.whole_put(
            names::HTTPS_PUT,
            "S3 over HTTP/1.1 and TLS on loopback, a gateway process",
            site,
            gateway,
        )?;
        self.paths.push(with_put_request(PathDecomposition::new(names::HTTPS_PUT).with(names::TLS)));
        Ok(())
    }
}

/// Adds to `path` the components that are part of every put over HTTP/1.1.
fn with_put_request(path: PathDecomposition) -> PathDecomposition {
    PUT_CONTENT
        .into_iter()
        .fold(path, |path, component| path.with(component))
        .with(names::TCP_ROUND_TRIP_PUT)
        .with(names::HTTP1_HEADS_PUT)
        .with(names::SIGN)
        .with(names::S3_LAYER_PUT)
}
