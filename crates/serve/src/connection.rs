//! One client from its first byte to its last: TLS if that is spoken here, then one HTTP or the other.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::answer::Shared;
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
    let remote = socket.peer_addr()?;
    let plain = TcpStream::from_std(socket)?;
    let socket = match &shared.tls {
        None => Socket::Plain(plain),
        Some(tls) => tls.accept(plain, shared.limits.header_timeout).await?,
    };
    if socket.chose_http2() {
        return http2::serve(socket, Vec::new(), remote, shared, stopped).await;
    }
    match http1::serve(socket, remote, shared, stopped.clone()).await? {
        Some((socket, ahead)) => http2::serve(socket, ahead, remote, shared, stopped).await,
        None => Ok(()),
    }
}
