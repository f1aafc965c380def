//! Ways that write: each puts a new object in place of one that was deleted just before, outside of the time.

use fordway_posix::Durability;
use fordway_store::{ChecksumAlgorithm, ETagPolicy, PutOptions, Result};
use fordway_workload::ledger::Path;

use super::super::echo::Form;
use super::super::rungs::Operation;
use super::super::rungs::layer::Layer;
use super::super::rungs::node_frames::{NodeFrames, WHOLE_BYTES_MAX};
use super::super::rungs::publish::{Publish, Write};
use super::super::rungs::request::Heads;
use super::super::rungs::round_trip::{Messages, Tcp, Unix};
use super::super::rungs::store::{Objects, Put};
use super::super::rungs::tls::Tls;
use super::{Ladder, Site};
use crate::commands::gateway::GatewayProcess;

impl Ladder {
    fn write_rungs(&mut self, site: &Site<'_>) -> Result<()> {
        let dir = site.dir.join("published");
        let description =
            "a file without a name and content: opened, its time set, looked at, linked, closed";
        self.add("file publish", description, || Ok(Box::new(Publish::new(&dir)?)))?;
        let description = "pwrite to a new file without a name";
        self.add("pwrite", description, || Ok(Box::new(Write::new(site.dir, &site.contents)?)))?;
        let description = "an object written by the store in this process: held directory, no server";
        self.add("embedded put", description, || {
            Ok(Box::new(Put::new(site.objects.clone(), PutOptions::default(), None)))
        })
    }

    pub(super) fn embedded_put(&mut self, site: &Site<'_>) -> Result<()> {
        self.write_rungs(site)?;
        self.paths.push(Path::new("embedded put").with("file publish").with("pwrite"));
        Ok(())
    }

    pub(super) fn node_put(&mut self, site: &Site<'_>) -> Result<()> {
        self.write_rungs(site)?;
        let mut frames = NodeFrames::new(Operation::Put, &site.bucket)?;
        let description = "request and reply of a put by the node lane written and read, in memory";
        self.add("node frames, put", description, || {
            Ok(Box::new(NodeFrames::new(Operation::Put, &site.bucket)?))
        })?;
        let sizes = move |size_bytes: u64| {
            let (request_bytes, head_bytes) = frames.lengths(size_bytes)?;
            let size = size_bytes as usize;
            let (content, form) =
                if size_bytes > WHOLE_BYTES_MAX { (0, Form::Descriptor) } else { (size, Form::Bytes) };
            let request_bytes = request_bytes + content;
            Ok(Messages { request_bytes, head_bytes, body_bytes: 0, form, rest_bytes: size })
        };
        let description = "messages as long as those of puts by the node lane, content included, to a process \
                           that only answers, and back; over 128 KiB a descriptor comes back for the next content";
        self.add("unix round trip, put", description, || {
            Ok(Box::new(Unix::new(site.dir, &site.largest, Box::new(sizes))?))
        })?;
        let gateway = GatewayProcess::start_node(site.root, ETagPolicy::Fast, Durability::None)?;
        let objects = Objects::new(gateway.client()?, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        self.gateways.push(gateway);
        self.add("node put", "the node lane, a gateway process", || {
            let put = Put::new(objects, PutOptions::default(), Some(pid));
            Ok(Box::new(put.written_here_over(WHOLE_BYTES_MAX, &site.objects)))
        })?;
        let path = Path::new("node put").with("embedded put").with("unix round trip, put");
        self.paths.push(path.with("node frames, put"));
        Ok(())
    }

    /// What every put over HTTP is made of.
    fn put_request_rungs(&mut self, site: &Site<'_>) -> Result<()> {
        let description = "an object written by the store in this process, with a checksum that is computed \
                           and kept";
        self.add("embedded put, checksum", description, || {
            let checksum = Some(ChecksumAlgorithm::Crc64Nvme);
            let options = PutOptions { checksum, ..PutOptions::default() };
            Ok(Box::new(Put::new(site.objects.clone(), options, None)))
        })?;
        let description = "a PUT without its content answered by the S3 layer in memory, signature verified";
        self.add("s3 layer, put", description, || {
            Ok(Box::new(Layer::new(Operation::Put, &site.bucket, &site.contents)?))
        })?;
        let request = self.request(site, Operation::Put)?;
        self.heads("http1 heads, put", &request)?;
        let sizes = move |size_bytes: u64| {
            let Heads { asked, answered } = request.heads(size_bytes)?;
            let (size, form) = (size_bytes as usize, Form::Bytes);
            let (request_bytes, head_bytes) = (asked.len() + size, answered.len());
            Ok(Messages { request_bytes, head_bytes, body_bytes: 0, form, rest_bytes: size })
        };
        let description = "messages as long as those of puts by HTTP/1.1, content included, over loopback TCP \
                           to a process that only answers, and back";
        self.add("tcp round trip, put", description, || {
            Ok(Box::new(Tcp::new(&site.largest, Box::new(sizes))?))
        })
    }

    /// The whole way through a gateway that writes the files itself.
    fn whole_put(
        &mut self,
        name: &str,
        description: &str,
        site: &Site<'_>,
        gateway: GatewayProcess,
    ) -> Result<()> {
        let objects = Objects::new(gateway.client()?, &site.bucket, &site.contents)?;
        let pid = gateway.pid();
        self.gateways.push(gateway);
        self.add(name, description, || Ok(Box::new(Put::new(objects, PutOptions::default(), Some(pid)))))
    }

    pub(super) fn http_put(&mut self, site: &Site<'_>) -> Result<()> {
        self.put_request_rungs(site)?;
        let gateway = Ladder::gateway(site.root)?;
        self.whole_put("http put", "S3 over HTTP/1.1 on loopback, a gateway process", site, gateway)?;
        self.paths.push(with_put_request(Path::new("http put")));
        Ok(())
    }

    pub(super) fn https_put(&mut self, site: &Site<'_>) -> Result<()> {
        self.put_request_rungs(site)?;
        let description = "content sealed and opened by TLS, both in memory, one after the other";
        self.add("tls", description, || Ok(Box::new(Tls::new(&site.contents)?)))?;
        let gateway = Ladder::tls_gateway(site.root)?;
        self.whole_put(
            "https put",
            "S3 over HTTP/1.1 and TLS on loopback, a gateway process",
            site,
            gateway,
        )?;
        self.paths.push(with_put_request(Path::new("https put").with("tls")));
        Ok(())
    }
}

/// What every put over HTTP has: its checksum is computed on both sides.
fn with_put_request(path: Path) -> Path {
    path.with("embedded put, checksum")
        .with("crc64nvme")
        .with("tcp round trip, put")
        .with("http1 heads, put")
        .with("sign")
        .with("s3 layer, put")
}
