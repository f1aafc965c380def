//! The node protocol: frames, requests, responses and the handshake.

use std::collections::BTreeMap;

use fordway_store::{BucketInfo, ObjectInfo, ObjectListing, PartListing, PutResult, VersionListing};
use fordway_wire::node::{
    CLIENT_HELLO_BYTES, CommitResponse, FrameBuffer, FrameHeader, GATEWAY_HELLO_BYTES, GetResponse,
    NodeClientHello, NodeGatewayHello, NodeResponse, ReadField, ReadResponse, ReceivedFrame, Request,
    ResponseFlags, StartWriteResponse, WriteField, take_reply,
};

/// Reads frames from a buffer that is filled in pieces. Each frame is parsed as a request and as every kind of
/// response.
pub(super) fn frames(bytes: &[u8]) {
    handshake(bytes);
    for piece in [7, 4096] {
        let mut buffer = FrameBuffer::default();
        for piece in bytes.chunks(piece) {
            fill(&mut buffer, piece);
            while let Ok(Some(header)) = buffer.next_header() {
                let frame = buffer.frame(&header).expect("a frame whose header says that it is complete");
                assert_eq!(frame.body.len(), header.body_bytes as usize);
                read(&frame);
                buffer.consume(header.frame_bytes());
            }
        }
        assert!(buffer.capacity_bytes() <= 128 << 10, "memory for bytes that were announced but not sent");
        buffer.shrink(0);
    }
}

fn fill(buffer: &mut FrameBuffer, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let room = buffer.room();
        let count = bytes.len().min(room.len());
        room[..count].copy_from_slice(&bytes[..count]);
        buffer.filled(count);
        bytes = &bytes[count..];
    }
}

fn read(frame: &ReceivedFrame<'_>) {
    if let Ok(request) = Request::take(frame.header.code, frame.fields) {
        let mut again = Vec::new();
        request.put(&mut again, frame.header.id, frame.body.len());
        let header = FrameHeader::read(&again).ok().flatten().expect("a header written by this target");
        assert_eq!((header.code, header.id), (request.code(), frame.header.id));
        let _objects = request.batch_objects();
        let fields = &again[again.len() + frame.body.len() - header.length as usize..];
        let second = Request::take(header.code, fields).expect("a request written by this target");
        assert_eq!(format!("{second:?}"), format!("{request:?}"), "written again");
    }
    responses(frame);
}

/// Parses a frame as each kind of response, and writes the result back.
fn responses(frame: &ReceivedFrame<'_>) {
    response::<PutResult>(frame);
    response::<ObjectInfo>(frame);
    response::<BucketInfo>(frame);
    response::<ObjectListing>(frame);
    response::<PartListing>(frame);
    response::<VersionListing>(frame);
    response::<GetResponse>(frame);
    response::<ReadResponse>(frame);
    response::<StartWriteResponse>(frame);
    response::<CommitResponse>(frame);
    response::<BTreeMap<String, String>>(frame);
    response::<Option<u64>>(frame);
}

fn response<T: ReadField + WriteField + std::fmt::Debug>(frame: &ReceivedFrame<'_>) {
    let answer = take_reply::<T>(frame);
    let mut out = Vec::new();
    let flags = ResponseFlags::default().with(ResponseFlags::STREAM);
    NodeResponse { id: 1, flags, answer: answer.as_ref(), body_bytes: 0 }.put(&mut out);
    let header = FrameHeader::read(&out).ok().flatten().expect("a header written by this target");
    let again = take_reply::<T>(&header.frame(&out).expect("a whole frame"));
    if let Ok(answer) = answer {
        let again = again.expect("a response written by this target");
        assert_eq!(format!("{again:?}"), format!("{answer:?}"), "written again");
    }
}

fn handshake(bytes: &[u8]) {
    if let Some(hello) =
        bytes.first_chunk::<CLIENT_HELLO_BYTES>().and_then(|bytes| NodeClientHello::from_bytes(bytes).ok())
    {
        assert_eq!(NodeClientHello::from_bytes(&hello.to_bytes()).ok(), Some(hello));
    }
    let welcome = bytes.first_chunk::<GATEWAY_HELLO_BYTES>().map(NodeGatewayHello::from_bytes);
    if let Some(Ok(welcome)) = welcome {
        assert_eq!(NodeGatewayHello::from_bytes(&welcome.to_bytes()).ok(), Some(welcome));
    }
}
