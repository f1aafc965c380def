//! One client from its first byte to its last: TLS if that is spoken here, then one HTTP or the other.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::answer::Shared;
use crate::caller::Caller;
use crate::gateway::Stopped;
use crate::socket::Socket;
use crate::{http1, http2};

/// Serves one connection until it ends, or until `stopped` and its requests in progress are answered.
pub(crate) async fn serve(socket: std::net::TcpStream, shared: &Arc<Shared>, stopped: Stopped) {
    match speak(socket, shared, stopped).await {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            tracing::warn!(%error, "an object could not be read to its end");
        }
        Err(error) => tracing::debug!(%error, "a connection ended early"),
    }
}

async fn speak(socket: std::net::TcpStream, shared: &Arc<Shared>, stopped: Stopped) -> io::Result<()> {
    let caller = Caller::Remote(socket.peer_addr()?);
    let plain = TcpStream::from_std(socket)?;
    let socket = match &shared.tls {
        None => Socket::Plain(plain),
        Some(tls) => tls.accept(plain, shared.limits.header_timeout).await?,
    };
    match socket.chose_http2() {
        true => http2::serve(socket, Vec::new(), caller, shared, stopped).await,
        false => exchange(socket, Vec::new(), caller, shared, stopped).await,
    }
}

/// Serves a connection in the clear, of which `ahead` was read already, in the HTTP that it begins with.
pub(crate) async fn exchange(
    socket: Socket,
    ahead: Vec<u8>,
    caller: Caller,
    shared: &Arc<Shared>,
    stopped: Stopped,
) -> io::Result<()> {
    match http1::serve(socket, ahead, &caller, shared, stopped.clone()).await? {
        Some((socket, ahead)) => http2::serve(socket, ahead, caller, shared, stopped).await,
        None => Ok(()),
    }
}
