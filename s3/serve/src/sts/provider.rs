//! OIDC providers: the issuers of web identity tokens, the keys that verify the tokens, and the claims that a role
//! requires.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fordway_http::{Origin, ProxySettings, TlsRoots};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::outgoing::{OutgoingRules, check_url, fetch};
use crate::sts::jwk::{PublicKey, SignatureAlgorithm, read_keys};
use crate::users::fits;

/// The name of the field that permits private addresses.
const ALLOW_PRIVATE: &str = "allow_private";
/// The time for which keys are used without fetching them again. This time is short, so that a withdrawn key is soon
/// refused.
const FRESH: Duration = Duration::from_secs(10 * 60);
/// The maximum time for which keys are used if the provider does not respond.
const STALE: Duration = Duration::from_secs(60 * 60);
/// The minimum time between two attempts to find an unknown key. Without this limit, anyone could cause many requests
/// to the provider by sending tokens with invented key IDs.
const NEW_KEY_INTERVAL: Duration = Duration::from_secs(30);
/// The minimum time between two attempts to reach a provider that does not respond.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum time for fetching keys.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// A provider's entry in the credentials file.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdentityProviderEntry {
    /// The issuer's URL, exactly as in tokens.
    pub(crate) issuer: String,
    /// The audiences that tokens may have.
    audience: Vec<String>,
    /// The signature algorithms that are permitted for tokens. An empty list permits all supported algorithms.
    #[serde(default)]
    algorithms: Vec<String>,
    /// Hosts, other than the issuer's host, that may serve the keys. The port follows the host unless the port is 443.
    #[serde(default)]
    hosts: Vec<String>,
    /// A PEM file with the certificate authorities for the provider's certificate; `None` for the system's authorities.
    ca_bundle: Option<PathBuf>,
    /// Whether the provider may have an address in a private network or on this machine.
    #[serde(default)]
    allow_private: bool,
    /// The URL of the proxy through which the provider is reached. An empty string means no proxy, and `None` means the
    /// proxy from the environment.
    proxy: Option<String>,
}

/// The claims that a role requires of a token.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct RoleTrust {
    pub(crate) issuer: String,
    /// The permitted values of claims; `*` in a value matches any characters.
    claims: BTreeMap<String, Vec<String>>,
}

impl IdentityProviderEntry {
    /// Checks the entry. Errors: the reason why the entry is invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.issuer.contains('?') {
            return Err("the issuer has a query; remove it".to_owned());
        }
        self.proxies().map_err(|error| error.detail().to_owned())?;
        check_url(&self.issuer, self.allow_private, ALLOW_PRIVATE)
            .map_err(|why| format!("the issuer {why}"))?;
        if self.audience.is_empty() || self.audience.iter().any(String::is_empty) {
            return Err("audience must name at least one audience".to_owned());
        }
        match self.algorithms.iter().find(|name| SignatureAlgorithm::named(name).is_none()) {
            Some(name) => Err(format!("the algorithm {name:?} is not RS256, ES256 or EdDSA")),
            None => Ok(()),
        }
    }

    /// Returns the proxies through which the provider and the hosts with its keys are reached. Errors:
    /// `InvalidArgument` if the entry has a proxy whose URL is not valid.
    fn proxies(&self) -> fordway_store::Result<ProxySettings> {
        self.proxies_with(&|name| std::env::var(name).ok())
    }

    /// Returns the proxies that apply if the environment variables have the values that `variable` returns. Errors: as
    /// for [`IdentityProviderEntry::proxies`].
    fn proxies_with(
        &self,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> fordway_store::Result<ProxySettings> {
        match self.proxy.as_deref() {
            None => Ok(ProxySettings::resolve(variable)),
            Some("") => Ok(ProxySettings::none()),
            Some(url) => ProxySettings::only(url),
        }
    }

    pub(super) fn audience(&self) -> &[String] {
        &self.audience
    }

    pub(super) fn allows(&self, algorithm: SignatureAlgorithm) -> bool {
        self.algorithms.is_empty()
            || self.algorithms.iter().any(|name| SignatureAlgorithm::named(name) == Some(algorithm))
    }

    /// Fetches the provider's keys. Errors: the reason why there are no keys.
    fn fetch_keys(&self) -> Result<Vec<PublicKey>, String> {
        #[derive(Deserialize)]
        struct Discovery {
            issuer: String,
            jwks_uri: String,
        }
        let roots = self.ca_bundle.clone().map_or(TlsRoots::System, TlsRoots::File);
        let deadline = Instant::now() + FETCH_TIMEOUT;
        let proxies = self.proxies().map_err(|error| error.detail().to_owned())?;
        let allows_private = self.allow_private;
        let rules = OutgoingRules { roots, allows_private, setting: ALLOW_PRIVATE, proxies, deadline };
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let document = fetch(&url, &rules)?;
        let found: Discovery =
            serde_json::from_slice(&document).map_err(|_| format!("{url}: it has no issuer or jwks_uri"))?;
        if found.issuer != self.issuer {
            return Err(format!("{url}: it names another issuer"));
        }
        self.check_place(&found.jwks_uri)?;
        let document = fetch(&found.jwks_uri, &rules)?;
        let keys = read_keys(&document).ok_or_else(|| format!("{}: it is not a key set", found.jwks_uri))?;
        match keys.is_empty() {
            true => Err(format!("{}: it has no key that can be used", found.jwks_uri)),
            false => Ok(keys),
        }
    }

    /// Checks that the keys are at the issuer's origin, or at a host that the entry names. Errors: the keys are at
    /// another host.
    fn check_place(&self, url: &str) -> Result<(), String> {
        let parse = |url| Origin::parse(url).map(|(origin, _)| origin);
        let parse = |url| parse(url).map_err(|error| error.detail().to_owned());
        let (keys, issuer) = (parse(url)?, parse(&self.issuer)?);
        // The authority has a port only if the port is not 443.
        let is_named = |host: &String| host.eq_ignore_ascii_case(&keys.authority());
        let is_named = keys.tls && self.hosts.iter().any(is_named);
        match keys == issuer || is_named {
            true => Ok(()),
            false => Err(format!("the keys are at {keys}, which hosts does not name")),
        }
    }
}

impl RoleTrust {
    /// Checks the conditions. `issuers` are the issuers of the identity providers. Errors: the reason why the
    /// conditions are invalid.
    pub(crate) fn check(&self, issuers: &HashSet<&str>) -> Result<(), String> {
        if !issuers.contains(self.issuer.as_str()) {
            return Err(format!("there is no [[oidc]] with the issuer {:?}", self.issuer));
        }
        match self.claims.is_empty() || self.claims.values().any(Vec::is_empty) {
            true => Err("claims must name at least one claim, each with a value".to_owned()),
            false => Ok(()),
        }
    }

    /// Returns whether a token with these claims meets the conditions.
    pub(super) fn is_met_by(&self, claims: &Map<String, Value>) -> bool {
        self.claims.iter().all(|(name, patterns)| {
            let values = claims.get(name).map(|value| values_of(name, value)).unwrap_or_default();
            values.iter().any(|value| patterns.iter().any(|pattern| fits(pattern, value)))
        })
    }
}

/// Returns the values of a claim: the elements of a list, and the words of `scope` (RFC 8693 section 4.2).
fn values_of(name: &str, value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if name == "scope" => text.split(' ').map(str::to_owned).collect(),
        Value::String(text) => vec![text.clone()],
        Value::Bool(_) | Value::Number(_) => vec![value.to_string()],
        Value::Array(all) => all.iter().filter_map(|one| one.as_str().map(str::to_owned)).collect(),
        Value::Null | Value::Object(_) => Vec::new(),
    }
}

/// A provider, and the keys that were last fetched from it.
pub(crate) struct IdentityProvider {
    pub(crate) entry: IdentityProviderEntry,
    known: Mutex<KnownKeys>,
    /// Notifies its receivers whenever an attempt to fetch the keys has ended.
    fetched: watch::Sender<()>,
}

#[derive(Default)]
struct KnownKeys {
    keys: Arc<Vec<PublicKey>>,
    since: Option<Instant>,
    is_fetching: bool,
    /// The time of the last attempt to fetch the keys because they were not fresh.
    asked: Option<Instant>,
    /// The time of the last attempt to fetch the keys because a key was unknown.
    asked_for_new: Option<Instant>,
}

impl KnownKeys {
    fn age(&self) -> Option<Duration> {
        self.since.map(|since| since.elapsed())
    }

    /// Returns whether the caller must fetch the keys now. If so, records the attempt. `is_known` indicates whether the
    /// wanted key is among the known keys.
    fn begin(&mut self, is_known: bool) -> bool {
        let is_fresh = self.age().is_some_and(|age| age < FRESH);
        let (asked, interval) = match is_fresh {
            true => (&mut self.asked_for_new, NEW_KEY_INTERVAL),
            false => (&mut self.asked, RETRY_INTERVAL),
        };
        let is_due = asked.is_none_or(|at| at.elapsed() >= interval);
        if self.is_fetching || (is_fresh && is_known) || !is_due {
            return false;
        }
        *asked = Some(Instant::now());
        self.is_fetching = true;
        true
    }

    /// Returns the keys; `None` if they were fetched more than [`STALE`] ago, or never.
    fn usable(&self) -> Option<Arc<Vec<PublicKey>>> {
        self.age().filter(|age| *age < STALE).map(|_| self.keys.clone())
    }
}

/// An attempt to fetch keys. Dropping this value ends the attempt, so that another attempt can begin.
struct FetchInProgress(Arc<IdentityProvider>);

impl Drop for FetchInProgress {
    fn drop(&mut self) {
        self.0.known().is_fetching = false;
        self.0.fetched.send_replace(());
    }
}

impl IdentityProvider {
    pub(crate) fn new(entry: IdentityProviderEntry) -> Arc<Self> {
        Arc::new(IdentityProvider { entry, known: Mutex::default(), fetched: watch::Sender::new(()) })
    }

    fn known(&self) -> MutexGuard<'_, KnownKeys> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether `has_key` finds the wanted key among the provider's keys. Fetches the keys first if they are not
    /// fresh, or if the wanted key is not among the known keys. Returns `None` if there are no usable keys. Cost: one
    /// call of `has_key`, and another call if the keys have been fetched in the meantime.
    pub(super) async fn has_key(self: &Arc<Self>, has_key: impl Fn(&[PublicKey]) -> bool) -> Option<bool> {
        let mut fetched = self.fetched.subscribe();
        // The lock is not held during the search, because the search verifies signatures.
        let keys = self.known().keys.clone();
        let is_known = has_key(&keys);
        let must_wait = {
            let mut known = self.known();
            if known.begin(is_known) {
                drop(known);
                self.fetch_apart();
                true
            } else {
                known.is_fetching && !(is_known && known.usable().is_some())
            }
        };
        if must_wait {
            // If fetching takes longer than `FETCH_TIMEOUT`, the keys that are already known are used.
            let _ = tokio::time::timeout(FETCH_TIMEOUT, fetched.changed()).await;
        }
        let usable = self.known().usable()?;
        match Arc::ptr_eq(&usable, &keys) {
            true => Some(is_known),
            false => Some(has_key(&usable)),
        }
    }

    /// Fetches the keys on a separate thread, because the time for looking up a host's address cannot be limited.
    fn fetch_apart(self: &Arc<Self>) {
        let attempt = FetchInProgress(self.clone());
        let fetch = move || {
            let fetched = attempt.0.entry.fetch_keys();
            let mut known = attempt.0.known();
            match fetched {
                Ok(keys) => (known.keys, known.since) = (Arc::new(keys), Some(Instant::now())),
                Err(why) => {
                    tracing::warn!(issuer = attempt.0.entry.issuer, "no keys of the OIDC provider: {why}");
                }
            }
            drop(known);
        };
        if let Err(error) = std::thread::Builder::new().name("fordway-oidc".to_owned()).spawn(fetch) {
            tracing::error!(%error, "no thread to fetch the keys of an OIDC provider");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(claims: &str) -> RoleTrust {
        toml::from_str(&format!("issuer='https://i'\n[claims]\n{claims}")).unwrap()
    }

    #[test]
    fn all_claims_of_a_condition_are_needed() {
        let claims: Map<String, Value> = serde_json::from_str(
            r#"{"sub":"s-1","scope":"storage.read:/ storage.modify:/a","wlcg.groups":["/cms","/cms/prod"],"level":3,
                "object":{"a":1}}"#,
        )
        .unwrap();
        for met in [
            "sub=['s-1']",
            "sub=['s-*']",
            "scope=['storage.modify:/a']",
            "'wlcg.groups'=['/atlas', '/cms/*']\nsub=['*']",
            "level=['3']",
        ] {
            assert!(trust(met).is_met_by(&claims), "{met}");
        }
        for missed in [
            "sub=['s']",
            "scope=['storage.read:/ storage.modify:/a']",
            "scope=['storage']",
            "'wlcg.groups'=['/atlas']",
            "'wlcg.groups'=['/cms']\nsub=['other']",
            "absent=['*']",
            "object=['*']",
        ] {
            assert!(!trust(missed).is_met_by(&claims), "{missed}");
        }
    }

    #[test]
    fn entries_are_checked() {
        let check = |text: &str| toml::from_str::<IdentityProviderEntry>(text).unwrap().check();
        let good = "issuer='https://i.example'\naudience=['a']\n";
        check(good).unwrap();
        check("issuer='http://127.0.0.1:1'\naudience=['a']\nallow_private=true").unwrap();
        for proxy in ["", "proxy.example:3128", "https://me:secret@proxy.example", "socks5h://proxy.example"]
        {
            check(&format!("{good}proxy='{proxy}'")).unwrap();
        }
        let wrong = check(&format!("{good}proxy='ftp://me:secret@proxy.example'")).expect_err("no proxy");
        assert!(wrong.contains("the proxy names") && !wrong.contains("secret"), "{wrong}");
        for bad in [
            "issuer='http://i.example'\naudience=['a']\nallow_private=true",
            "issuer='http://127.0.0.1:1'\naudience=['a']",
            "issuer='i.example'\naudience=['a']",
            "issuer='https://i.example'\naudience=[]",
            &format!("{good}algorithms=['HS256']"),
            &format!("{good}algorithms=['none']"),
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_entry_or_the_environment_names_the_proxy() {
        let shown = |proxy: &str| {
            let entry = format!("issuer='https://i.example'\naudience=['a']\n{proxy}");
            let entry: IdentityProviderEntry = toml::from_str(&entry).unwrap();
            let variable = |name: &str| match name {
                "HTTPS_PROXY" => Some("http://of-environment:1".to_owned()),
                "NO_PROXY" => Some("other.example".to_owned()),
                _ => None,
            };
            format!("{:?}", entry.proxies_with(&variable).unwrap())
        };
        let of_environment = shown("");
        assert!(of_environment.contains("http://of-environment:1"), "{of_environment}");
        assert!(of_environment.contains("other.example"), "{of_environment}");
        let of_entry = shown("proxy='http://of-entry:2'");
        assert!(of_entry.contains("http://of-entry:2"), "{of_entry}");
        assert!(!of_entry.contains("of-environment") && !of_entry.contains("other.example"), "{of_entry}");
        let none = shown("proxy=''");
        assert!(!none.contains("http://") && !none.contains("other.example"), "{none}");
    }

    #[test]
    fn keys_are_at_the_issuer_or_at_a_named_host() {
        let entry: IdentityProviderEntry = toml::from_str(
            "issuer='https://i.example/x'\naudience=['a']\nhosts=['Keys.example', '10.0.0.1:6443']",
        )
        .unwrap();
        for good in ["https://i.example/jwks", "https://keys.example:443/jwks", "https://10.0.0.1:6443/jwks"]
        {
            entry.check_place(good).unwrap();
        }
        for bad in [
            "http://i.example/jwks",
            "https://i.example:8443/jwks",
            "https://other.example/",
            "http://keys.example/",
            "http://keys.example:443/",
            "https://keys.example:6443/",
            "https://10.0.0.1/",
            "http://10.0.0.1:6443/",
            "file:///x",
        ] {
            assert!(entry.check_place(bad).is_err(), "{bad}");
        }
    }

    /// `has_key` verifies a signature, which is expensive. The known keys must therefore be searched only once.
    #[test]
    fn known_keys_are_searched_once() {
        // Nothing listens at this address, so the keys cannot be fetched.
        let entry = "issuer='http://127.0.0.1:1'\naudience=['a']\nallow_private=true\nproxy=''";
        let provider = IdentityProvider::new(toml::from_str(entry).unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let searched = |is_found: bool| {
            let calls = std::cell::Cell::new(0);
            let has_key = |_: &[PublicKey]| {
                calls.set(calls.get() + 1);
                is_found
            };
            let found = runtime.block_on(provider.has_key(has_key));
            (found, calls.get())
        };
        assert_eq!(searched(false), (None, 1), "there are no keys");
        provider.known().since = Some(Instant::now());
        assert_eq!(searched(true), (Some(true), 1));
        assert_eq!(searched(false), (Some(false), 1), "fetching the keys has failed");
    }

    #[test]
    fn a_provider_is_asked_again_only_after_a_while() {
        let mut known = KnownKeys::default();
        assert!(known.begin(false));
        assert!(!known.begin(false), "an attempt is in progress");
        known.is_fetching = false;
        assert!(!known.begin(false), "the last attempt has just failed");
        known.since = Some(Instant::now());
        assert!(!known.begin(true), "the key is known");
        assert!(known.begin(false), "the key may be new");
        known.is_fetching = false;
        assert!(!known.begin(false), "an unknown key was just looked for");
    }
}
