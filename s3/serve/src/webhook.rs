//! The receivers of events: URLs that the gateway's administrator names. Users can choose a webhook only by its name.

use std::fmt;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fordway_http::{ProxySettings, TlsRoots};
use fordway_store::{Error, ErrorKind, Result};
use fordway_wire::notification::is_webhook_name;

use crate::monitor::put_help;
use crate::outgoing::{OutgoingFailure, OutgoingRules, check_url, post};
use crate::users::read_private;

/// The maximum time for connecting, sending the events and receiving the status.
const POST_TIMEOUT: Duration = Duration::from_secs(10);
/// The option that permits private addresses.
const PRIVATE: &str = "--webhook-private";

/// The configuration of a webhook.
#[derive(Clone, Debug, Default)]
pub struct WebhookConfig {
    /// The name by which configurations of buckets refer to the webhook.
    pub name: String,
    /// The URL; `https`, or `http` for this machine.
    pub url: String,
    /// A file with a token that is sent with each request; only its owner may read the file.
    pub token: Option<PathBuf>,
    /// A PEM file with the certificate authorities for the receiver; `None` for the system's authorities.
    pub ca_bundle: Option<PathBuf>,
    /// Whether the receiver may have an address of a private network or of this machine.
    pub allows_private: bool,
}

/// A receiver of events, and its counters.
pub struct Webhook {
    name: String,
    url: String,
    token: Option<String>,
    roots: TlsRoots,
    allows_private: bool,
    proxies: ProxySettings,
    counters: WebhookCounters,
}

/// Shows only the name, because the URL and the token may be secrets.
impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The number of events of a webhook, by outcome.
#[derive(Default)]
struct WebhookCounters {
    delivered: AtomicU64,
    failed: AtomicU64,
    expired: AtomicU64,
    unwanted: AtomicU64,
    waiting: AtomicU64,
}

/// The reason why events were not delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookFailure {
    /// No connection to the receiver was established, for the given reason.
    Unreachable(String),
    /// The receiver accepted a connection, but returned no status. The cause may be one of the events.
    NoResponse(String),
    /// The receiver returned this status, which is not between 200 and 299.
    Refused(u16),
}

impl fmt::Display for WebhookFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WebhookFailure::Unreachable(why) | WebhookFailure::NoResponse(why) => f.write_str(why),
            WebhookFailure::Refused(status) => write!(f, "the receiver answered with the status {status}"),
        }
    }
}

impl Webhook {
    /// Checks a configuration, and reads its token. Errors: `InvalidArgument` for a name or URL that is not permitted;
    /// `AccessDenied` for a token that others may read.
    pub fn new(config: WebhookConfig) -> Result<Arc<Self>> {
        let WebhookConfig { name, url, token, ca_bundle, allows_private } = config;
        let wrong = |why: String| Error::new(ErrorKind::InvalidArgument, format!("webhook {name:?}: {why}"));
        if !is_webhook_name(&name) {
            return Err(wrong("a name has 1 to 32 lower-case letters, digits and hyphens".to_owned()));
        }
        check_url(&url, allows_private, PRIVATE).map_err(|why| wrong(format!("the URL {why}")))?;
        let token = token.map(|path| read_private(&path)).transpose()?;
        let token = token.map(|token| token.trim().to_owned());
        if token
            .as_ref()
            .is_some_and(|token| token.is_empty() || !token.bytes().all(|it| it.is_ascii_graphic()))
        {
            return Err(wrong("the token must be one word of printable ASCII characters".to_owned()));
        }
        let roots = ca_bundle.map_or(TlsRoots::System, TlsRoots::File);
        let (proxies, counters) = (ProxySettings::discover(), WebhookCounters::default());
        Ok(Arc::new(Webhook { name, url, token, roots, allows_private, proxies, counters }))
    }

    /// Returns the name by which configurations of buckets refer to the webhook.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a document with `events` events. Blocks for up to 10 s, or longer if the look-up of the host's address
    /// takes longer. Follows no redirects. Errors: any outcome other than a status from 200 to 299.
    pub fn deliver(&self, document: &[u8], events: u64) -> std::result::Result<(), WebhookFailure> {
        let rules = OutgoingRules {
            roots: self.roots.clone(),
            allows_private: self.allows_private,
            setting: PRIVATE,
            proxies: self.proxies.clone(),
            deadline: Instant::now() + POST_TIMEOUT,
        };
        let sent = match post(&self.url, self.token.as_deref(), document, &rules) {
            Ok(200..=299) => Ok(()),
            Ok(status) => Err(WebhookFailure::Refused(status)),
            Err(OutgoingFailure { why, was_connected: false }) => Err(WebhookFailure::Unreachable(why)),
            Err(OutgoingFailure { why, was_connected: true }) => Err(WebhookFailure::NoResponse(why)),
        };
        match sent {
            Ok(()) => add(&self.counters.delivered, events),
            Err(_) => add(&self.counters.failed, events),
        }
        sent
    }

    /// Counts events that were dropped because they were too old, or because no rule applies to them any more.
    pub fn count_dropped(&self, expired: u64, unwanted: u64) {
        add(&self.counters.expired, expired);
        add(&self.counters.unwanted, unwanted);
    }

    /// Sets the number of events that wait for delivery.
    pub fn set_waiting(&self, waiting: u64) {
        self.counters.waiting.store(waiting, Ordering::Relaxed);
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Appends the counters of all webhooks to `text`.
pub(crate) fn put_webhooks(text: &mut String, webhooks: &[Arc<Webhook>]) {
    /// A label, and the counter that has the label.
    type Labelled = (&'static str, fn(&WebhookCounters) -> &AtomicU64);
    let rows: [(&str, &str, &str, &[Labelled]); 4] = [
        ("delivered_total", "counter", "Events that a webhook accepted.", &[("", |it| &it.delivered)]),
        (
            "failed_total",
            "counter",
            "Events in requests that a webhook did not accept.",
            &[("", |it| &it.failed)],
        ),
        (
            "dropped_total",
            "counter",
            "Events that were dropped: too old, or no rule applies to them any more.",
            &[(",reason=\"age\"", |it| &it.expired), (",reason=\"rules\"", |it| &it.unwanted)],
        ),
        ("waiting", "gauge", "Events that wait for a webhook, as last counted.", &[("", |it| &it.waiting)]),
    ];
    for (name, kind, help, counters) in rows.iter().filter(|_| !webhooks.is_empty()) {
        let name = format!("events_{name}");
        put_help(text, &name, kind, help);
        for webhook in webhooks {
            for (label, counter) in *counters {
                let count = counter(&webhook.counters).load(Ordering::Relaxed);
                // Writing to a string does not fail.
                let _ = writeln!(text, "fordway_{name}{{webhook=\"{}\"{label}}} {count}", webhook.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(name: &str, url: &str, allows_private: bool) -> Result<Arc<Webhook>> {
        let (name, url) = (name.to_owned(), url.to_owned());
        Webhook::new(WebhookConfig { name, url, allows_private, ..WebhookConfig::default() })
    }

    #[test]
    fn only_permitted_urls_are_webhooks() {
        for (url, allows_private) in [
            ("https://hooks.example.org/a?b=c", false),
            ("http://127.0.0.1:8080/", true),
            ("http://localhost:8080/hook", true),
            ("https://10.0.0.1/", false),
        ] {
            assert!(webhook("ci", url, allows_private).is_ok(), "{url}");
        }
        for (name, url, allows_private) in [
            ("ci", "http://127.0.0.1:8080/", false),
            ("ci", "http://hooks.example.org/", true),
            ("ci", "http://10.0.0.1/", true),
            ("ci", "file:///etc/passwd", true),
            ("ci", "hooks.example.org", false),
            ("ci", "https://hooks.example.org/?a#b", false),
            ("ci", "https://hooks.example.org/#b", false),
            ("CI", "https://hooks.example.org/", false),
            ("", "https://hooks.example.org/", false),
        ] {
            let error = webhook(name, url, allows_private).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}: {error}");
        }
        // An address is checked again when the gateway connects.
        let refused = webhook("ci", "https://127.0.0.1:1/", false).unwrap().deliver(b"{}", 1).unwrap_err();
        assert!(matches!(&refused, WebhookFailure::Unreachable(why) if why.contains(PRIVATE)), "{refused}");
    }

    #[test]
    fn counters_are_written() {
        let hook = webhook("ci", "https://127.0.0.1:1/", false).unwrap();
        let _ = hook.deliver(b"{}", 3);
        hook.count_dropped(1, 2);
        hook.set_waiting(4);
        let mut text = String::new();
        put_webhooks(&mut text, &[]);
        assert_eq!(text, "");
        put_webhooks(&mut text, &[hook]);
        for line in [
            "fordway_events_delivered_total{webhook=\"ci\"} 0",
            "fordway_events_failed_total{webhook=\"ci\"} 3",
            "fordway_events_dropped_total{webhook=\"ci\",reason=\"age\"} 1",
            "fordway_events_dropped_total{webhook=\"ci\",reason=\"rules\"} 2",
            "fordway_events_waiting{webhook=\"ci\"} 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
