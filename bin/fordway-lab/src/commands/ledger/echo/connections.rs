//! The process that responds on new connections. Like the gateway, the process accepts connections in one thread, and
//! responds in another thread. TLS is optional. A request is an [`EchoRequest`].

use std::io;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

use super::{EchoRequest, ORDER_BYTES, announce};

/// Responds over TCP.
pub(super) fn serve(control: TcpStream) -> io::Result<()> {
    serve_with(control, None)
}

/// Responds over TLS, with the certificate in the directory `certificate`. Errors: operating-system errors, and an
/// unusable certificate.
pub(super) fn serve_tls(control: TcpStream, certificate: &Path) -> io::Result<()> {
    let acceptor = TlsAcceptor::from(Arc::new(tls_config(certificate).map_err(io::Error::other)?));
    serve_with(control, Some(acceptor))
}

fn serve_with(control: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<()> {
    let listener = TcpListener::bind((control.local_addr()?.ip(), 0))?;
    listener.set_nonblocking(true)?;
    announce(&control, listener.local_addr()?)?;
    let (accepted, waiting) = unbounded_channel();
    std::thread::Builder::new().name("connections".to_owned()).spawn(move || work(waiting, tls))?;
    runtime()?.block_on(async { until_closed(control, accept(listener, accepted)).await })
}

/// Returns a configuration like the gateway's: TLS 1.3 with tickets that refer to sessions in memory.
fn tls_config(certificate: &Path) -> Result<ServerConfig, Box<dyn std::error::Error + Send + Sync>> {
    let chain =
        CertificateDer::pem_file_iter(certificate.join("cert.pem"))?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(certificate.join("key.pem"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

pub(super) fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// Runs `serve` until the measuring process closes the connection.
pub(super) async fn until_closed(
    control: TcpStream,
    serve: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    control.set_nonblocking(true)?;
    let mut control = tokio::net::TcpStream::from_std(control)?;
    tokio::select! {
        served = serve => served,
        _ = control.read_u8() => Ok(()),
    }
}

async fn accept(listener: TcpListener, accepted: UnboundedSender<TcpStream>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        accepted.send(socket.into_std()?).map_err(io::Error::other)?;
    }
}

/// Serves connections, until the process exits.
fn work(mut waiting: UnboundedReceiver<TcpStream>, tls: Option<TlsAcceptor>) -> io::Result<()> {
    let serve = async move {
        while let Some(socket) = waiting.recv().await {
            let tls = tls.clone();
            spawn_local(async move {
                // If a connection fails, the measuring process reports the error.
                let _ = serve_one(socket, tls).await;
            });
        }
    };
    LocalSet::new().block_on(&runtime()?, serve);
    Ok(())
}

async fn serve_one(socket: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<()> {
    let socket = tokio::net::TcpStream::from_std(socket)?;
    match tls {
        None => respond(socket).await,
        Some(tls) => respond(tls.accept(socket).await?).await,
    }
}

async fn respond(mut socket: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let (mut request, mut answer) = ([0; ORDER_BYTES], Vec::new());
    loop {
        socket.read_exact(&mut request).await?;
        let EchoRequest { head_bytes, body_bytes, .. } =
            EchoRequest::read(&request).ok_or(io::ErrorKind::InvalidData)?;
        answer.resize(head_bytes + body_bytes, 1);
        socket.write_all(&answer).await?;
        socket.flush().await?;
    }
}
