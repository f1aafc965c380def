//! Tests parts of objects over HTTP: their checksums, reading a part, and attributes of parts.

mod client;

use client::{Answer, BUCKET, Call, Fixture, serve};
use fordway_store::{Checksum, ChecksumAlgorithm, MIN_PART_BYTES};

fn crc32(content: &[u8]) -> String {
    Checksum::of(ChecksumAlgorithm::Crc32, content).to_base64()
}

/// An upload of two parts with CRC-32s, of 5 MiB and 4 bytes.
struct Upload {
    fixture: Fixture,
    id: String,
    bodies: [Vec<u8>; 2],
    etags: Vec<String>,
}

impl Upload {
    fn start(checksum_type: &str) -> Self {
        let fixture = serve();
        let start = Call::on("POST", "big")
            .query("uploads")
            .header("x-amz-checksum-algorithm", "CRC32")
            .header("x-amz-checksum-type", checksum_type);
        let started = fixture.client.send(&start).ok();
        assert_eq!(started.header("x-amz-checksum-type"), Some(checksum_type));
        let id = started.element("UploadId").unwrap();
        let bodies = [vec![7u8; MIN_PART_BYTES as usize], b"tail".to_vec()];
        let mut upload = Upload { fixture, id, bodies, etags: Vec::new() };
        upload.etags = [1, 2].map(|number| upload.put(number)).into();
        upload
    }

    fn put(&self, number: usize) -> String {
        let body = &self.bodies[number - 1];
        let query = format!("partNumber={number}&uploadId={}", self.id);
        let put = Call::on("PUT", "big").query(&query).header("x-amz-checksum-crc32", crc32(body));
        let answer = self.fixture.client.send(&put.body(body.clone())).ok();
        answer.header("etag").unwrap().to_owned()
    }

    fn complete(&self, sums: [&str; 2], headers: &[(&'static str, &str)]) -> Answer {
        let parts: String = (1..)
            .zip(&self.etags)
            .zip(sums)
            .map(|((n, tag), sum)| {
                format!(
                    "<Part><PartNumber>{n}</PartNumber><ETag>{tag}</ETag>\
                     <ChecksumCRC32>{sum}</ChecksumCRC32></Part>"
                )
            })
            .collect();
        let query = format!("uploadId={}", self.id);
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let call = Call::on("POST", "big").query(&query).body(body);
        let call = headers.iter().fold(call, |call, (name, value)| call.header(name, *value));
        self.fixture.client.send(&call)
    }

    fn sums(&self) -> [String; 2] {
        [crc32(&self.bodies[0]), crc32(&self.bodies[1])]
    }

    fn complete_rightly(&self) -> Answer {
        let [one, two] = self.sums();
        self.complete([&one, &two], &[]).ok()
    }
}

/// If the checksum type of an upload is `COMPOSITE`, the completion must contain exactly one checksum for each part,
/// with the checksum algorithm of the upload.
#[test]
fn a_completion_states_at_most_one_checksum_of_each_part() {
    let upload = Upload::start("COMPOSITE");
    let complete = |number: i64, sums: &str| {
        let part = format!("<PartNumber>{number}</PartNumber><ETag>{}</ETag>{sums}", upload.etags[0]);
        let body = format!("<CompleteMultipartUpload><Part>{part}</Part></CompleteMultipartUpload>");
        upload
            .fixture
            .client
            .send(&Call::on("POST", "big").query(&format!("uploadId={}", upload.id)).body(body))
    };
    let crc = format!("<ChecksumCRC32>{}</ChecksumCRC32>", upload.sums()[0]);
    let sha = "<ChecksumSHA1>qvTGHdzF6KLavt4PO0gs2a6pQ00=</ChecksumSHA1>";
    for (number, sums, code, words) in [
        (1, sha, "BadDigest", "The sha1 you specified for part 1 did not match what we received."),
        (1, &*format!("{crc}{sha}"), "InvalidArgument", "multiple checksums present"),
        (1, "<ChecksumCRC32>?</ChecksumCRC32>", "InvalidArgument", "Invalid Base64"),
        (
            1,
            "",
            "InvalidRequest",
            "using a crc32 checksum. The complete request must include the checksum for",
        ),
        (-4, &crc, "InvalidArgument", "PartNumber must be &gt;= 1"),
        (0, &crc, "InvalidArgument", "PartNumber must be &gt;= 1"),
    ] {
        let answer = complete(number, sums);
        assert_eq!(answer.error(), (400, code.to_owned()), "{number} {sums}");
        assert!(answer.element("Message").unwrap().contains(words), "{}", answer.text());
    }
    let done = complete(1, &crc).ok();
    let place = format!("http://{}/{BUCKET}/big", upload.fixture.client.address);
    assert_eq!(done.element("Location"), Some(place));
}

/// Clients would remove the segments `.` and `..` from a URL, and then request another object.
#[test]
fn a_key_that_no_url_can_name_has_no_location() {
    let fixture = serve();
    let client = &fixture.client;
    let begun = client.send(&Call::on("POST", "a/../b").query("uploads=")).ok();
    let id = begun.element("UploadId").unwrap();
    let (part, whole) = (format!("partNumber=1&uploadId={id}"), format!("uploadId={id}"));
    let put = client.send(&Call::on("PUT", "a/../b").query(&part).body("x")).ok();
    let etag = put.header("etag").unwrap();
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    let done = client.send(&Call::on("POST", "a/../b").query(&whole).body(body)).ok();
    assert_eq!((done.element("Location"), done.element("Key")), (None, Some("a/../b".to_owned())));
}

#[test]
fn a_checksum_of_the_whole_is_that_of_its_parts_joined() {
    let upload = Upload::start("FULL_OBJECT");
    let [one, two] = upload.sums();
    let listed =
        upload.fixture.client.send(&Call::on("GET", "big").query(&format!("uploadId={}", upload.id)));
    assert_eq!(listed.ok().elements("ChecksumCRC32"), [one.clone(), two.clone()]);
    assert_eq!(upload.complete([&two, &one], &[]).error(), (400, "InvalidPart".to_owned()));
    let sums = [one.as_str(), two.as_str()];
    let wrong = upload.complete(sums, &[("x-amz-checksum-crc32", &one)]);
    assert_eq!(wrong.error(), (400, "BadDigest".to_owned()));
    let short = upload.complete(sums, &[("x-amz-mp-object-size", "9")]);
    assert_eq!(short.error(), (400, "InvalidRequest".to_owned()));
    assert!(short.text().contains(&format!("does not match what was computed: {}", MIN_PART_BYTES + 4)));
    let whole = crc32(&upload.bodies.concat());
    let size = (MIN_PART_BYTES + 4).to_string();
    let done =
        upload.complete(sums, &[("x-amz-checksum-crc32", &whole), ("x-amz-mp-object-size", &size)]).ok();
    assert_eq!(done.element("ChecksumCRC32").as_deref(), Some(whole.as_str()));
    assert_eq!(done.element("ChecksumType").as_deref(), Some("FULL_OBJECT"));
    let head = Call::on("HEAD", "big").header("x-amz-checksum-mode", "ENABLED");
    let head = upload.fixture.client.send(&head).ok();
    assert_eq!(head.header("x-amz-checksum-crc32"), Some(whole.as_str()));
    assert_eq!(head.header("x-amz-checksum-type"), Some("FULL_OBJECT"));
}

#[test]
fn a_composite_checksum_says_of_how_many_parts() {
    let upload = Upload::start("COMPOSITE");
    let done = upload.complete_rightly();
    assert!(done.element("ChecksumCRC32").unwrap().ends_with("-2"));
    assert_eq!(done.element("ChecksumType").as_deref(), Some("COMPOSITE"));
}

#[test]
fn a_checksum_of_the_wrong_type_is_refused() {
    let fixture = serve();
    let start = |algorithm: &str, kind: &str| {
        let call = Call::on("POST", "k").query("uploads").header("x-amz-checksum-algorithm", algorithm);
        fixture.client.send(&call.header("x-amz-checksum-type", kind))
    };
    for (algorithm, kind) in [("SHA256", "FULL_OBJECT"), ("CRC64NVME", "COMPOSITE"), ("CRC32", "OTHER")] {
        assert_eq!(start(algorithm, kind).error(), (400, "InvalidRequest".to_owned()), "{algorithm} {kind}");
    }
}

#[test]
fn one_part_is_read_by_its_number() {
    let upload = Upload::start("COMPOSITE");
    upload.complete_rightly();
    let size = MIN_PART_BYTES + 4;
    let range = format!("bytes {MIN_PART_BYTES}-{}/{size}", size - 1);
    let read = |method, key, query| upload.fixture.client.send(&Call::on(method, key).query(query));
    for method in ["GET", "HEAD"] {
        let part = read(method, "big", "partNumber=2");
        assert_eq!((part.status, part.header("content-range")), (206, Some(range.as_str())), "{method}");
        assert_eq!(part.header("x-amz-mp-parts-count"), Some("2"));
        assert_eq!(part.header("content-length"), Some("4"));
        assert_eq!(part.text(), if method == "GET" { "tail" } else { "" });
        assert_eq!(read(method, "big", "partNumber=3").status, 416);
        assert_eq!(part.header("x-amz-checksum-crc32"), None);
        let call = Call::on(method, "big").query("partNumber=2").header("x-amz-checksum-mode", "ENABLED");
        let part = upload.fixture.client.send(&call).ok();
        assert_eq!(part.header("x-amz-checksum-crc32"), Some(upload.sums()[1].as_str()), "{method}");
        assert_eq!(part.header("x-amz-checksum-type"), Some("COMPOSITE"));
    }
    assert_eq!(read("GET", "big", "partNumber=3").error(), (416, "InvalidPartNumber".to_owned()));
    assert_eq!(read("GET", "big", "partNumber=0").error(), (400, "InvalidArgument".to_owned()));
    let both = Call::on("GET", "big").query("partNumber=1").header("range", "bytes=0-1");
    assert_eq!(upload.fixture.client.send(&both).error().0, 400);

    upload.fixture.client.send(&Call::on("PUT", "small").body("small")).ok();
    let whole = read("GET", "small", "partNumber=1");
    assert_eq!((whole.status, whole.text().as_str()), (206, "small"));
    assert_eq!(whole.header("x-amz-mp-parts-count"), None);
    upload.fixture.client.send(&Call::on("PUT", "empty").body("")).ok();
    let empty = read("GET", "empty", "partNumber=1");
    assert_eq!((empty.status, empty.header("content-range")), (200, None));
}

#[test]
fn attributes_in_one_document() {
    let upload = Upload::start("COMPOSITE");
    upload.complete_rightly();
    let attributes = |wanted: &str, more: &[(&'static str, &str)]| {
        let call = Call::on("GET", "big").query("attributes").header("x-amz-object-attributes", wanted);
        let call = more.iter().fold(call, |call, (name, value)| call.header(name, *value));
        upload.fixture.client.send(&call).ok()
    };
    let all = attributes("ETag,Checksum,ObjectParts,StorageClass,ObjectSize", &[]);
    assert!(all.text().contains("<GetObjectAttributesResponse"));
    assert_eq!(all.element("ObjectSize"), Some((MIN_PART_BYTES + 4).to_string()));
    let tag = all.element("ETag").unwrap();
    assert!(!tag.contains('"') && !tag.contains("&quot;"), "{tag}");
    let head = upload.fixture.client.send(&Call::on("HEAD", "big")).ok();
    assert_eq!(head.header("etag"), Some(format!("\"{tag}\"").as_str()));
    assert_eq!(all.element("StorageClass").as_deref(), Some("STANDARD"));
    assert_eq!(all.element("ChecksumType").as_deref(), Some("COMPOSITE"));
    assert_eq!(all.elements("Size"), [MIN_PART_BYTES.to_string(), "4".to_owned()]);
    assert_eq!(all.elements("ChecksumCRC32")[1..], upload.sums());
    // AWS omits the number of parts after a composite checksum only in responses to GetObjectAttributes.
    let asked = Call::on("HEAD", "big").header("x-amz-checksum-mode", "ENABLED");
    let whole = upload.fixture.client.send(&asked).ok().header("x-amz-checksum-crc32").unwrap().to_owned();
    assert_eq!(whole.strip_suffix("-2"), Some(all.elements("ChecksumCRC32")[0].as_str()));
    assert_eq!(all.element("PartsCount").as_deref(), Some("2"));
    assert_eq!(attributes("ObjectSize", &[]).element("ETag"), None);

    let first = attributes("ObjectParts", &[("x-amz-max-parts", "1")]);
    assert_eq!(first.element("IsTruncated").as_deref(), Some("true"));
    let marker = first.element("NextPartNumberMarker").unwrap();
    let rest = attributes("ObjectParts", &[("x-amz-part-number-marker", &marker)]);
    assert_eq!(
        (rest.elements("PartNumber"), rest.element("IsTruncated").unwrap()),
        (vec!["2".into()], "false".into())
    );
}

#[test]
fn uploads_in_progress_are_rolled_up() {
    let fixture = serve();
    for key in ["a/1", "a/2", "b", "c/d/1", "c/d/2"] {
        fixture.client.send(&Call::on("POST", key).query("uploads")).ok();
    }
    let list = |query: &str| fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query(query));
    let whole = list("delimiter=%2F&uploads").ok();
    assert_eq!(
        (whole.elements("Key"), whole.elements("Prefix")),
        (vec!["b".to_owned()], vec![String::new(), "a/".into(), "c/".into()])
    );
    let below = list("delimiter=%2F&prefix=c%2F&uploads").ok();
    assert_eq!(below.elements("Prefix"), ["c/", "c/d/"]);
    // If a page ends with a prefix, the response also contains the ID of an upload as a marker, as on AWS.
    let rolled = list("delimiter=%2F&max-uploads=1&uploads").ok();
    assert_eq!(rolled.element("NextKeyMarker").as_deref(), Some("a/"));
    assert!(rolled.element("NextUploadIdMarker").is_some(), "{}", rolled.text());
    let (mut seen, mut marker) = (Vec::new(), String::new());
    loop {
        let page = list(&format!("delimiter=%2F{marker}&max-uploads=1&uploads")).ok();
        seen.extend(
            page.elements("Key")
                .into_iter()
                .chain(page.elements("Prefix").into_iter().filter(|prefix| !prefix.is_empty())),
        );
        let Some(next) = page.element("NextKeyMarker") else { break };
        let upload = page.element("NextUploadIdMarker").map(|id| format!("&upload-id-marker={id}"));
        marker = format!("&key-marker={}{}", next.replace('/', "%2F"), upload.unwrap_or_default());
    }
    assert_eq!(seen, ["a/", "b", "c/"]);
}

/// A listing of uploads names the initiator and the checksum algorithm.
#[test]
fn listings_of_uploads_say_whose_and_which() {
    let fixture = serve();
    let start = |key: &str, algorithm: &str| {
        let call = Call::on("POST", key).query("uploads").header("x-amz-checksum-algorithm", algorithm);
        fixture.client.send(&call).ok().element("UploadId").unwrap()
    };
    let id = start("a", "SHA256");
    start("b", "CRC64NVME");
    let parts = fixture.client.send(&Call::on("GET", "a").query(&format!("uploadId={id}"))).ok();
    let uploads = fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query("uploads")).ok();
    for listed in [&parts, &uploads] {
        for element in ["Owner", "Initiator"] {
            assert!(listed.element(element).unwrap().starts_with("<ID>"), "{}", listed.text());
        }
        assert_eq!(listed.element("StorageClass").as_deref(), Some("STANDARD"));
        assert_eq!(listed.element("ChecksumAlgorithm").as_deref(), Some("SHA256"));
        assert_eq!(listed.element("ChecksumType").as_deref(), Some("COMPOSITE"));
    }
    assert_eq!(uploads.elements("ChecksumType"), ["COMPOSITE", "FULL_OBJECT"]);
    let page = |query: &str| fixture.client.send(&Call::new("GET", format!("/{BUCKET}")).query(query)).ok();
    assert_eq!(page("max-uploads=1&uploads").element("NextUploadIdMarker"), Some(id));
    assert!(!uploads.text().contains("NextUploadIdMarker"), "{}", uploads.text());
}
