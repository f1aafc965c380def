//! Batches are operations on many objects. A batch is sent as several messages, each with many objects.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use fordway_store::{
    Bucket, DeleteResult, Error, ErrorKind, GetOptions, Key, ObjectInfo, PutOptions, PutResult, Result,
};
use fordway_wire::node::{ReadField, Request, ResponseFlags};

use crate::node::connection::{NodeConnection, NodeFailure};
use crate::node::read::read;
use crate::node::session::{NodeCallTarget, NodeSession};
use crate::node::write::{WHOLE_BYTES_MAX, put};

/// The maximum number of objects in one message.
const OBJECTS_MAX: usize = 64;
/// The maximum number of content bytes in one message, unless a single object is larger.
const BODY_BYTES_MAX: usize = 128 << 10;
/// The maximum number of messages in flight. The keys in this many messages fit into a socket's buffers, so the two
/// sides cannot deadlock while each waits for the other to read.
const ON_THEIR_WAY_MAX: usize = 2;

/// A batch in progress.
struct NodeBatch<'b, T> {
    session: &'b Arc<NodeSession>,
    call: NodeCallTarget<'b>,
    /// The results so far, by position in the batch.
    results: Vec<Option<Result<T>>>,
}

impl<'b, T> NodeBatch<'b, T> {
    fn new(session: &'b Arc<NodeSession>, call: NodeCallTarget<'b>, len: usize) -> Self {
        NodeBatch { session, call, results: (0..len).map(|_| None).collect() }
    }

    /// Sends a request for each of `chunks`. `ask` queues the message for a chunk. `answer` decodes one response, which
    /// contains the results for the next objects of the chunk, or for all of its objects. If a connection breaks,
    /// unfinished chunks are requested again on another connection. If the gateway refuses a message, the objects of
    /// this chunk fail, and the other chunks are not affected.
    fn run<A: ReadField>(
        mut self,
        chunks: Vec<Range<usize>>,
        mut ask: impl FnMut(&mut NodeConnection, &Range<usize>) -> u32,
        mut answer: impl FnMut(A, &[u8]) -> Result<Vec<Result<T>>>,
    ) -> Vec<Result<T>> {
        let (session, call, results) = (self.session, self.call, &mut self.results);
        let mut open: VecDeque<Range<usize>> = chunks.into();
        let done = session.run(&call, |connection| {
            let mut asked: VecDeque<(u32, Range<usize>)> = VecDeque::new();
            // On a new connection, only the unfinished chunks are requested again.
            open.retain(|chunk| results[chunk.end - 1].is_none());
            let mut next = 0;
            while next < open.len() || !asked.is_empty() {
                let new = (ON_THEIR_WAY_MAX - asked.len()).min(open.len() - next);
                for chunk in open.range(next..next + new) {
                    asked.push_back((ask(connection, chunk), chunk.clone()));
                }
                next += new;
                if new > 0 {
                    connection.send_gathered(&[]).map_err(maybe_done)?;
                }
                let Some(sent) = asked.pop_front() else { break };
                take_results(connection, sent, &mut answer, results)?;
            }
            Ok(())
        });
        let failed = done.err();
        self.results
            .into_iter()
            .map(|result| result.unwrap_or_else(|| Err(as_each(failed.as_ref()))))
            .collect()
    }
}

/// Reads the responses to the message `id`, and stores the results of its chunk. An error of the whole message becomes
/// the result of each object that has no result yet. Errors: failures after which the connection cannot be used.
fn take_results<T, A: ReadField>(
    connection: &mut NodeConnection,
    (id, mut chunk): (u32, Range<usize>),
    answer: &mut impl FnMut(A, &[u8]) -> Result<Vec<Result<T>>>,
    results: &mut [Option<Result<T>>],
) -> Result<(), NodeFailure> {
    loop {
        let (found, header) = match connection.reply::<A>(id) {
            // The caller must not stop here: the response to another message may still be on its way, and the next user
            // of the connection would read it.
            Err(NodeFailure::Answered(error)) => {
                chunk.for_each(|at| results[at] = Some(Err(error.repeated())));
                return Ok(());
            }
            replied => replied?,
        };
        let found = answer(found, connection.body(&header)).map_err(NodeFailure::Unusable)?;
        connection.finish(&header);
        let (answered, has_more) = (found.len(), header.flags.has(ResponseFlags::MORE));
        if answered == 0 || answered > chunk.len() || has_more == (answered == chunk.len()) {
            let why = format!("the response has {answered} of {} requested objects", chunk.len());
            return Err(NodeFailure::Unusable(Error::new(ErrorKind::BadResponse, why)));
        }
        for (result, at) in found.into_iter().zip(&mut chunk) {
            results[at] = Some(result);
        }
        if !has_more {
            return Ok(());
        }
    }
}

/// Converts a failure to send. If several messages were sent, some may have arrived completely before the connection
/// broke, so it is unknown whether the gateway acted on them.
fn maybe_done(failure: NodeFailure) -> NodeFailure {
    match failure {
        NodeFailure::NotSent(errno) => NodeFailure::Unknown(errno),
        other => other,
    }
}

/// Converts the error of a whole batch to an error for one object.
fn as_each(failed: Option<&Error>) -> Error {
    match failed {
        Some(error) => error.repeated(),
        None => ErrorKind::Internal.into(),
    }
}

/// Splits a batch into messages; `body_bytes` returns the size of an object's content.
fn chunks(len: usize, body_bytes: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    let (mut all, mut start, mut bytes) = (Vec::new(), 0, 0);
    for at in 0..len {
        let more = body_bytes(at);
        if at > start && (at - start == OBJECTS_MAX || bytes + more > BODY_BYTES_MAX) {
            all.push(start..at);
            (start, bytes) = (at, 0);
        }
        bytes += more;
    }
    if start < len {
        all.push(start..len);
    }
    all
}

fn named<T>(
    results: Vec<Result<T>>,
    call: &NodeCallTarget<'_>,
    key: impl Fn(usize) -> String,
) -> Vec<Result<T>> {
    let name = |(at, result): (usize, Result<T>)| {
        result.map_err(|error| NodeCallTarget { key: &key(at), ..*call }.named(error))
    };
    results.into_iter().enumerate().map(name).collect()
}

pub(super) fn get_many(session: &Arc<NodeSession>, bucket: &Bucket, keys: &[Key]) -> Vec<Result<Vec<u8>>> {
    let call = NodeCallTarget { operation: "get", bucket: bucket.as_str(), key: "", is_idempotent: true };
    let ask = |connection: &mut NodeConnection, chunk: &Range<usize>| {
        let (bucket, keys) = (Cow::Borrowed(bucket), Cow::Borrowed(&keys[chunk.clone()]));
        connection.gather(&Request::GetMany { bucket, keys }, 0)
    };
    let cut = |found: Vec<Result<Option<u32>>>, mut body: &[u8]| {
        let mut object = |len: Option<u32>| match len.map(|len| body.split_at_checked(len as usize)) {
            None => Ok(None),
            Some(Some((object, rest))) => {
                body = rest;
                Ok(Some(object.to_vec()))
            }
            Some(None) => Err(Error::new(ErrorKind::BadResponse, "the objects are incomplete")),
        };
        Ok(found.into_iter().map(|len| len.and_then(&mut object)).collect())
    };
    let found = NodeBatch::new(session, call, keys.len()).run(chunks(keys.len(), |_| 0), ask, cut);
    let alone = |(result, key): (Result<Option<Vec<u8>>>, &Key)| match result {
        Ok(Some(object)) => Ok(object),
        Ok(None) => {
            let mut object = Vec::new();
            read(session, (bucket, key), &GetOptions::default(), &mut object).map(|_| object)
        }
        Err(error) => Err(error),
    };
    let found = found.into_iter().zip(keys).map(alone).collect();
    named(found, &call, |at| keys[at].to_string())
}

pub(super) fn head_many(
    session: &Arc<NodeSession>,
    bucket: &Bucket,
    keys: &[Key],
) -> Vec<Result<ObjectInfo>> {
    let call = NodeCallTarget { operation: "head", bucket: bucket.as_str(), key: "", is_idempotent: true };
    let ask = |connection: &mut NodeConnection, chunk: &Range<usize>| {
        let (bucket, keys) = (Cow::Borrowed(bucket), Cow::Borrowed(&keys[chunk.clone()]));
        connection.gather(&Request::HeadMany { bucket, keys }, 0)
    };
    let found =
        NodeBatch::new(session, call, keys.len()).run(chunks(keys.len(), |_| 0), ask, |found, _| Ok(found));
    named(found, &call, |at| keys[at].to_string())
}

pub(super) fn delete_many(
    session: &Arc<NodeSession>,
    bucket: &Bucket,
    keys: &[Key],
) -> Vec<Result<DeleteResult>> {
    let call = NodeCallTarget { operation: "delete", bucket: bucket.as_str(), key: "", is_idempotent: true };
    let ask = |connection: &mut NodeConnection, chunk: &Range<usize>| {
        let (bucket, keys) = (Cow::Borrowed(bucket), Cow::Borrowed(&keys[chunk.clone()]));
        connection.gather(&Request::DeleteMany { bucket, keys }, 0)
    };
    let found =
        NodeBatch::new(session, call, keys.len()).run(chunks(keys.len(), |_| 0), ask, |found, _| Ok(found));
    named(found, &call, |at| keys[at].to_string())
}

pub(super) fn put_many(
    session: &Arc<NodeSession>,
    bucket: &Bucket,
    objects: &[(Key, &[u8])],
    options: &PutOptions,
) -> Vec<Result<PutResult>> {
    if objects.iter().any(|(_, body)| body.len() > WHOLE_BYTES_MAX) {
        return objects.iter().map(|(key, body)| put(session, (bucket, key), body, options)).collect();
    }
    let is_idempotent = options.conditions.is_empty();
    let call = NodeCallTarget { operation: "put", bucket: bucket.as_str(), key: "", is_idempotent };
    let ask = |connection: &mut NodeConnection, chunk: &Range<usize>| {
        let chunk = &objects[chunk.clone()];
        let sizes: Vec<(Key, u32)> =
            chunk.iter().map(|(key, body)| (key.clone(), body.len() as u32)).collect();
        let body_bytes = chunk.iter().map(|(_, body)| body.len()).sum();
        let (bucket, options) = (Cow::Borrowed(bucket), Cow::Borrowed(options));
        let id = connection.gather(&Request::PutMany { bucket, options, objects: sizes.into() }, body_bytes);
        chunk.iter().for_each(|(_, body)| connection.gather_body(body));
        id
    };
    let chunks = chunks(objects.len(), |at| objects[at].1.len());
    let found = NodeBatch::new(session, call, objects.len()).run(chunks, ask, |found, _| Ok(found));
    named(found, &call, |at| objects[at].0.to_string())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};

    use fordway_wire::node::{
        CLIENT_HELLO_BYTES, FrameBuffer, FrameHeader, NONCE_BYTES, NodeGatewayHello, NodeResponse, VERSION,
    };

    use super::*;
    use crate::node::NodeAddress;

    /// Serves one connection. Refuses the messages with odd numbers. Accepts the other messages, but finds no object.
    /// Accepts deletions, because deleting a missing object succeeds.
    fn serve(mut socket: UnixStream) {
        socket.read_exact(&mut [0; CLIENT_HELLO_BYTES]).unwrap();
        let hello = NodeGatewayHello {
            version: VERSION,
            wants_proof: false,
            is_refusal: false,
            nonce: [0; NONCE_BYTES],
        };
        socket.write_all(&hello.to_bytes()).unwrap();
        let (mut inbox, mut messages) = (FrameBuffer::default(), 0);
        loop {
            let header = inbox.next_header().unwrap();
            let Some(frame) = header.as_ref().and_then(|header| inbox.frame(header)) else {
                match socket.read(inbox.room()).unwrap() {
                    0 => return,
                    count => inbox.filled(count),
                }
                continue;
            };
            messages += 1;
            let request = Request::take(frame.header.code, frame.fields).unwrap();
            let bytes = response(&frame.header, &request, messages % 2 == 1);
            let count = frame.header.frame_bytes();
            socket.write_all(&bytes).unwrap();
            inbox.consume(count);
        }
    }

    fn response(header: &FrameHeader, request: &Request<'_>, is_refused: bool) -> Vec<u8> {
        let refusal = Error::new(ErrorKind::AccessDenied, "not this one");
        let missing = || Err(ErrorKind::NoSuchKey.into());
        let objects: Vec<Result<DeleteResult>> = match request {
            Request::DeleteMany { keys, .. } => keys.iter().map(|_| Ok(DeleteResult::default())).collect(),
            Request::PutMany { objects, .. } => objects.iter().map(|_| missing()).collect(),
            Request::GetMany { keys, .. } | Request::HeadMany { keys, .. } => {
                keys.iter().map(|_| missing()).collect()
            }
            other => panic!("{other:?}"),
        };
        let (mut out, id) = (Vec::new(), header.id);
        let answer = if is_refused { Err(&refusal) } else { Ok(&objects) };
        NodeResponse { id, flags: ResponseFlags::default(), answer, body_bytes: 0 }.put(&mut out);
        out
    }

    fn kinds<T>(results: Vec<Result<T>>) -> Vec<Option<ErrorKind>> {
        results.into_iter().map(|result| result.err().map(|error| error.kind())).collect()
    }

    #[test]
    fn a_refused_message_fails_only_its_own_objects() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        // A second connection is refused, because the listener is closed after the first.
        let gateway = std::thread::spawn(move || {
            let (socket, _) = listener.accept().unwrap();
            drop(listener);
            serve(socket);
        });
        let session = Arc::new(NodeSession::new(NodeAddress::Unix(path)));
        let bucket = Bucket::new("bucket").unwrap();
        let keys: Vec<Key> = (0..OBJECTS_MAX + 3).map(|at| Key::new(format!("k{at}")).unwrap()).collect();
        let objects: Vec<(Key, &[u8])> = keys.iter().map(|key| (key.clone(), &b"x"[..])).collect();
        let expected = |rest| {
            let mut all = vec![Some(ErrorKind::AccessDenied); OBJECTS_MAX];
            all.extend([rest; 3]);
            all
        };
        let missing = Some(ErrorKind::NoSuchKey);
        for round in 0..2 {
            assert_eq!(kinds(delete_many(&session, &bucket, &keys)), expected(None), "{round}");
            assert_eq!(kinds(get_many(&session, &bucket, &keys)), expected(missing), "{round}");
            assert_eq!(kinds(head_many(&session, &bucket, &keys)), expected(missing), "{round}");
            let options = PutOptions::default();
            assert_eq!(kinds(put_many(&session, &bucket, &objects, &options)), expected(missing), "{round}");
        }
        drop(session);
        gateway.join().unwrap();
    }
}
