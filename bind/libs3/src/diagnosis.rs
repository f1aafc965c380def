//! Diagnosis: nothing, unless `FORDWAY_LOG` is set.

use std::io::IsTerminal;
use std::sync::Once;

use tracing_subscriber::EnvFilter;

/// Logs to standard error as `FORDWAY_LOG` says (`debug`, or `fordway_libs3=trace`, ...), and sends
/// panics there too. Called on each way in; does its work once.
pub(crate) fn start() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        if let Ok(filter) = EnvFilter::try_from_env("FORDWAY_LOG") {
            let subscriber = tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_ansi(std::io::stderr().is_terminal())
                .with_writer(std::io::stderr)
                .finish();
            // A program that has set up logging of its own keeps it.
            let _ = tracing::subscriber::set_global_default(subscriber);
        }
        if !cfg!(test) {
            std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a bug")));
        }
    });
}
