//! `/metrics`, `/health` and `/ready`, on an address of their own that needs no signature.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// The most bytes of a request for one of the three.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// How long a client may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked for.
pub(crate) trait Health: Send + Sync + 'static {
    /// Whether requests are served as they should.
    fn is_ready(&self) -> bool;
    /// The counters.
    fn metrics(&self) -> String;
}

/// Answers for as long as it is polled.
pub(crate) async fn serve(listener: TcpListener, health: std::sync::Arc<impl Health>) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let health = health.clone();
                tokio::spawn(async move {
                    // Whoever asks and then does not listen is on its own.
                    let _ = tokio::time::timeout(PATIENCE, answer(socket, &*health)).await;
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a request for metrics or health cannot be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn answer(mut socket: TcpStream, health: &impl Health) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > REQUEST_BYTES_MAX || socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let (status, kind, body) = match line {
        line if line.starts_with(b"GET /metrics ") => {
            ("200 OK", "text/plain; version=0.0.4", health.metrics())
        }
        line if line.starts_with(b"GET /health ") => ("200 OK", "text/plain", "alive\n".to_owned()),
        line if line.starts_with(b"GET /ready ") && health.is_ready() => {
            ("200 OK", "text/plain", "ready\n".to_owned())
        }
        line if line.starts_with(b"GET /ready ") => (
            "503 Service Unavailable",
            "text/plain",
            "the directory is gone, or the gateway is ending\n".to_owned(),
        ),
        _ => ("404 Not Found", "text/plain", "there are /metrics, /health and /ready\n".to_owned()),
    };
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    socket.write_all(answer.as_bytes()).await?;
    socket.shutdown().await
}
