//! The access log; alone in its file, because a subscriber belongs to the whole process.

mod client;

use std::io;
use std::sync::{Arc, Mutex};

use client::{BUCKET, Call, serve};
use tracing_subscriber::EnvFilter;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_line_says_what_was_asked_and_answered_but_no_secret() {
    let lines = Lines::default();
    let sink = lines.clone();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new("fordway::access=debug"))
        .with_ansi(false)
        .with_writer(move || sink.clone())
        .init();
    let fixture = serve();
    fixture.client.send(&Call::on("PUT", "k").body("hello")).ok();
    fixture.client.send(&Call::on("GET", "k")).ok();
    assert_eq!(fixture.client.send(&Call::on("GET", "none")).status, 404);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let logged: Vec<&str> = text.lines().collect();
    assert_eq!(logged.len(), 3, "{text}");
    assert!(logged[1].contains(&format!("method=GET path=\"/{BUCKET}/k\" status=200 bytes=5 us=")), "{text}");
    assert!(logged[2].contains("status=404"), "{text}");
    assert!(!text.contains(&fixture.client.identity.secret_key) && !text.contains("Signature"));
}
