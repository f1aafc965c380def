//! Tests web identities. Tokens from an OIDC provider can be exchanged for temporary credentials, and all other tokens
//! are refused.

mod client;

use std::collections::HashMap;
use std::fs::Permissions;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use client::{Answer, Call, Client};
use fordway_serve::{AccessKeyPair, Gateway, GatewayConfig, RunningGateway, StoreOpenFunction, Users};
use fordway_store::{MemoryStore, Objects, PutOptions};
use hmac::{Hmac, KeyInit as _, Mac as _};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RsaKeyPair, RsaPublicKeyComponents,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// A key that exists only for these tests.
const RSA_KEY: &str = "\
    MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQCeX8EKvH5HL7JUKAlpvCHobSSOBh/jZhYWiLYfoHd93pkXzJix\
    qnnCVkrBWtgx3FIlao71kUSvU7NCzYb2KqXJezBZfqOcdfSReWsOzeZyZ5DRjQcQrn/cWFl2OugkaKxWOHbGsblrxiWDI6f8fG5n\
    CETkVQhw8trLYi/LtBy4dDAFLkX/5m3yiR9XR3UpHzOB7PjeGkz2eg4dQDMt8h6Cutsdiz8H3ifXKW/1qdCsQMUorKta6ZPfoXma\
    Jl6CHad7xqJAoFDY/zXRsAn4MNohYf5oI9Lgy05PDEkLcuvSdoxcdlSXqByaHgzZkwmNaNJWtATliZtnyC3MjUCJhY5NAgMBAAEC\
    ggEACMftr8cJsrAN/CUyzb5U8Z/I4hMBhkiCZazIzvIaY0vfQyGLPyE2RQnRypdbMKXdlsjUtQA2mwinV3Hbz3RH4ubwpFWlg/xK\
    Rh1BoVLV5HaiN0F8KHb0YebddvUHKqr0ZdzAQSiuINqd+SprRaWEiDPo1fFyWV4ttrnH7/cZjI8rm5CsdbejO/kbCgrBKmwT/8De\
    qL/CGFbWpbL94ddvKvhnLo4Jq9L4miQTHtw7k5buj4MOCuABsl2PR8YILN2YTPkY08QdKzCiNJber0Igk+k4QtCCormORa5h5Y8L\
    BuuCg5YJc5dlwGZQROWZfkH6CPLiZYSrhBP6V1Tz6GjjJQKBgQDN9+JjP8nScdpMycXAtP32P1Gf3WrU3n8VnJQImNRoQzrhXDoY\
    nBbJSUvhuNjJKkR04va27Z2bT7Mt3hBQ+J9YuDkOddLCAtBe9pWnb1T+KQ1I4BACIf9aBdy9//8zU6QUSxGVgvByNs8H5AHQ0CQ8\
    d8N+9tRzCe50eYj0XHbr5wKBgQDE2DnfJz859CdXiGDQAvFfXvYbqmYjqVn8/0b0uMQelTM4CbP0hu2YSyuBHVKte3faTdD+LYKy\
    D25tLRHOTTnXAINgNRKVD9+xjCTu9dyZS8i7Wmq+yXHqngLV8Isj2AAXbJcj/qct17b1tAhOMLrCnQB901gQekFCWwcTRaLNqwKB\
    gQCpCmfP4vtl7zEl0neteB3yqvb3yIY0XMNaXl6US7IQPBUn/kRkDD8bRj+z6rxpJXp3oAqyCYRPgnLhEx67BcHp05BoUMT/m8We\
    GqyqdVIBInoXtGUPCw4CuUr42RB+9Id2bEHrPkLOyjLSHAxtb1Y+FmDpY/Tq0VzWVSTUwMqNQwKBgQCCQ714idZzmbl3Wc8HmQr2\
    3Dbt9AQH0Yi1vpHMXYGb44yzpugqCCivwf8WQLt4Bt833otRyfhVsZSYN10zMzP1rmdCgZy8fHbCXkYKxTWpVNeP9LPzcggrBUpH\
    HhpWLBlTZw9WSK2Fzt1LGEruw5y0MYYjvnrm3KDXMrop7MliZQKBgH64MwLeeNE4lyITqrruo5vUSHD2hsdGBzSnV154Mj0RQL78\
    yc2SglhxwJr4DwleY4oGugMBOLLxLZGv1dVjU67o+VDFjoVBqNix6L06ASKM+YIWksF1zUOSRUxRr3w2JaZGrBI4cY9iazNOGAsQ\
    5PxE0UKOAcsIfx5UE5n9t7Uv";

const AUDIENCE: &str = "https://wlcg.cern.ch/jwt/v1/any";

/// A signing key of the provider.
enum Key {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Key {
    fn rsa() -> Self {
        Key::Rsa(RsaKeyPair::from_pkcs8(&STANDARD.decode(RSA_KEY).unwrap()).unwrap())
    }

    fn p256() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Key::P256(EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap())
    }

    fn ed25519() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Key::Ed25519(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
    }

    fn algorithm(&self) -> &'static str {
        match self {
            Key::Rsa(_) => "RS256",
            Key::P256(_) => "ES256",
            Key::Ed25519(_) => "EdDSA",
        }
    }

    /// Returns the public key as a JWK.
    fn jwk(&self, id: &str) -> Value {
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Key::Rsa(pair) => {
                let public = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({"kty": "RSA", "use": "sig", "kid": id, "n": text(&public.n), "e": text(&public.e)})
            }
            Key::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "kid": id, "x": text(&point[1..33]), "y": text(&point[33..])})
            }
            Key::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": text(pair.public_key().as_ref())})
            }
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Key::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).unwrap();
                signature
            }
            Key::P256(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Key::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// Returns a token that this key has signed.
    fn token(&self, id: &str, claims: &Value) -> String {
        self.token_with(&json!({"typ": "JWT", "alg": self.algorithm(), "kid": id}), claims)
    }

    /// Returns a token that does not name the key.
    fn token_without_id(&self, claims: &Value) -> String {
        self.token_with(&json!({"typ": "JWT", "alg": self.algorithm()}), claims)
    }

    fn token_with(&self, header: &Value, claims: &Value) -> String {
        let signed = unsigned(header, claims);
        let signature = URL_SAFE_NO_PAD.encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

fn unsigned(header: &Value, claims: &Value) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", part(header), part(claims))
}

/// A provider on this machine. The test sets the responses of the provider.
struct Provider {
    address: SocketAddr,
    issuer: String,
    /// The responses with their heads, by path.
    responses: Arc<Mutex<HashMap<String, String>>>,
    requests: Arc<AtomicUsize>,
}

impl Provider {
    fn start() -> Self {
        Provider::serving(|address| format!("http://{address}"), respond)
    }

    /// Starts a provider with TLS at the name [`NAME`], and writes its certificate into `ca_bundle`.
    fn start_tls(ca_bundle: &Path) -> Self {
        let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
        std::fs::write(ca_bundle, made.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)
            .unwrap();
        let config = Arc::new(config);
        Provider::serving(
            |address| format!("https://{NAME}:{}", address.port()),
            move |stream, responses| {
                let session = ServerConnection::new(config.clone()).unwrap();
                respond(StreamOwned::new(session, stream), responses);
            },
        )
    }

    fn serving(
        issuer: impl Fn(SocketAddr) -> String,
        respond: impl Fn(TcpStream, &Mutex<HashMap<String, String>>) + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (responses, requests) = (Arc::new(Mutex::new(HashMap::new())), Arc::new(AtomicUsize::new(0)));
        let (heard, counted, issuer) = (responses.clone(), requests.clone(), issuer(address));
        let provider = Provider { address, issuer, responses, requests };
        provider.discover(&format!("{}/jwks", provider.issuer()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                respond(stream, &heard);
            }
        });
        provider
    }

    fn issuer(&self) -> String {
        self.issuer.clone()
    }

    fn set(&self, path: &str, response: String) {
        self.responses.lock().unwrap().insert(path.to_owned(), response);
    }

    fn discover(&self, jwks_uri: &str) {
        let document = json!({"issuer": self.issuer(), "jwks_uri": jwks_uri});
        self.set("/.well-known/openid-configuration", ok(&document.to_string()));
    }

    fn keys(&self, keys: &[(&str, &Key)]) {
        let keys: Vec<Value> = keys.iter().map(|(id, key)| key.jwk(id)).collect();
        self.set("/jwks", ok(&json!({"keys": keys}).to_string()));
    }

    /// Returns the claims of a currently valid token that follows the WLCG profile.
    fn claims(&self) -> Value {
        json!({
            "wlcg.ver": "1.0", "iss": self.issuer(), "sub": "e1eb758b-b73c-4761-bfff-adc793da409c",
            "aud": AUDIENCE, "iat": now(), "nbf": now(), "exp": now() + 1200,
            "scope": "storage.read:/ openid", "wlcg.groups": ["/cms", "/cms/production"],
        })
    }

    fn claims_with(&self, name: &str, value: Value) -> Value {
        let mut claims = self.claims();
        claims[name] = value;
        claims
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

fn respond(mut stream: impl Read + Write, responses: &Mutex<HashMap<String, String>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let path = String::from_utf8_lossy(&head).split(' ').nth(1).unwrap_or_default().to_owned();
    let missing = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned();
    let response = responses.lock().unwrap().get(&path).cloned().unwrap_or(missing);
    // An error is ignored, because a gateway that refuses a response may close the connection before it has received
    // the whole response.
    let _ = stream.write_all(response.as_bytes());
    let _ = stream.flush();
}

/// The name of the provider with TLS, which only the proxy can resolve.
const NAME: &str = "oidc.test";

/// A proxy that opens all tunnels to this machine, regardless of the host's name. The proxy records the requested
/// hosts.
struct TunnelProxy {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl TunnelProxy {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let proxy = TunnelProxy { address, asked: asked.clone() };
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let asked = asked.clone();
                std::thread::spawn(move || TunnelProxy::serve(client, &asked));
            }
        });
        proxy
    }

    fn serve(mut client: TcpStream, asked: &Mutex<Vec<String>>) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if !matches!(client.read(&mut byte), Ok(1)) {
                return;
            }
            head.push(byte[0]);
        }
        let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
        let port = line.split([' ', ':']).nth(2).and_then(|port| port.parse::<u16>().ok());
        asked.lock().unwrap().push(line);
        let Some(Ok(server)) = port.map(|port| TcpStream::connect(("127.0.0.1", port))) else { return };
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        let (mut to_server, mut from_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
        let _ = std::io::copy(&mut &server, &mut client);
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

/// A gateway that trusts a provider.
struct Ground {
    _dir: tempfile::TempDir,
    gateway: RunningGateway,
}

impl Ground {
    fn new(provider: &Provider) -> Self {
        Ground::with(
            &format!(
                "[[oidc]]\nissuer='{}'\naudience=['other', '{AUDIENCE}']\nallow_private=true\n",
                provider.issuer()
            ),
            &provider.issuer(),
        )
    }

    fn with(oidc: &str, issuer: &str) -> Self {
        let who = format!("uid={}\ngid={}\n", fordway_sys::user_id(), fordway_sys::group_id());
        let role = format!("name='cms'\n{who}read_only=true\n");
        Ground::start(oidc, issuer, &role, || ()).unwrap()
    }

    /// Starts a gateway with `role`. Calls `opened` whenever the gateway opens the store.
    fn start(
        oidc: &str,
        issuer: &str,
        role: &str,
        opened: impl Fn() + Send + Sync + 'static,
    ) -> fordway_store::Result<Self> {
        let dir = tempfile::tempdir().unwrap();
        let store = MemoryStore::default();
        store.create_bucket(&client::bucket()).unwrap();
        store.put(&client::bucket(), &client::key("k"), b"hello", &PutOptions::default()).unwrap();
        let who = format!("uid={}\ngid={}\n", fordway_sys::user_id(), fordway_sys::group_id());
        let users = format!(
            "[[user]]\nname='alice'\naccess_key='ALICE'\nsecret_key='alice-secret'\n{who}{oidc}\
             [[role]]\n{role}[[role.oidc]]\nissuer='{issuer}'\n[role.oidc.claims]\n\
             'wlcg.groups'=['/cms/*']\nscope=['storage.read:/']\n"
        );
        let path = dir.path().join("users.toml");
        std::fs::write(&path, users).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        std::fs::create_dir(dir.path().join("root")).unwrap();
        let open: StoreOpenFunction = Arc::new(move || {
            opened();
            Ok(Arc::new(store.clone()))
        });
        let users = Users::from_file(&path, &dir.path().join("root"), open)?;
        let mut config = GatewayConfig::new(([127, 0, 0, 1], 0).into());
        config.threads = 2;
        Ok(Ground { _dir: dir, gateway: Gateway::bind(users, config)?.spawn()? })
    }

    fn client(&self, access_key: &str, secret_key: &str) -> Client {
        let identity = AccessKeyPair { access_key: access_key.to_owned(), secret_key: secret_key.to_owned() };
        Client { address: self.gateway.local_addr(), identity, clock_offset_s: 0, dates_by_date: false }
    }

    fn assume(&self, token: &str) -> Answer {
        self.assume_role("cms", token)
    }

    fn assume_role(&self, role: &str, token: &str) -> Answer {
        let form = format!(
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleSessionName=job&WebIdentityToken={token}&\
             RoleArn=arn%3Aaws%3Aiam%3A%3A%3Arole%2F{role}"
        );
        let head = format!(
            "POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-type: application/x-www-form-urlencoded\r\n\
             content-length: {}\r\n\r\n",
            form.len()
        );
        self.client("", "").send_raw("POST", &(head + &form))
    }
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.error(), (status, code.to_owned()), "{}", answer.text());
}

#[test]
fn tokens_of_every_algorithm_become_credentials() {
    let provider = Provider::start();
    let (rsa, p256, ed25519) = (Key::rsa(), Key::p256(), Key::ed25519());
    provider.keys(&[("r", &rsa), ("p", &p256), ("e", &ed25519)]);
    let ground = Ground::new(&provider);
    for (id, key) in [("r", &rsa), ("p", &p256), ("e", &ed25519)] {
        let answer = ground.assume(&key.token(id, &provider.claims())).ok();
        let text = |name: &str| answer.element(name).unwrap_or_default();
        assert_eq!(text("Arn"), "arn:aws:sts:::assumed-role/cms/job");
        assert_eq!(text("SubjectFromWebIdentityToken"), "e1eb758b-b73c-4761-bfff-adc793da409c");
        assert_eq!((text("Provider"), text("Audience")), (provider.issuer(), AUDIENCE.to_owned()));
        let client = ground.client(&text("AccessKeyId"), &text("SecretAccessKey"));
        let token = text("SessionToken");
        let get = Call::on("GET", "k").header("x-amz-security-token", &token);
        assert_eq!(client.send(&get).ok().text(), "hello");
        let put = Call::on("PUT", "k").header("x-amz-security-token", &token).body("new");
        refused(&client.send(&put), 403, "AccessDenied");
    }
    assert_eq!(provider.requests(), 2, "one discovery, one set of keys");
}

#[test]
fn claims_decide_who_may_assume_a_role() {
    let provider = Provider::start();
    let key = Key::p256();
    provider.keys(&[("k", &key)]);
    let ground = Ground::new(&provider);
    let assume = |claims: &Value| ground.assume(&key.token("k", claims));
    assume(&provider.claims_with("aud", json!(["x", AUDIENCE]))).ok();
    assume(&provider.claims_with("exp", json!(now() - 30))).ok();
    for (claim, value) in [
        ("wlcg.groups", json!(["/cms"])),
        ("wlcg.groups", json!([])),
        ("wlcg.groups", Value::Null),
        ("scope", json!("storage.read:/a")),
    ] {
        refused(&assume(&provider.claims_with(claim, value)), 403, "AccessDenied");
    }
    for (claim, value) in [
        ("iss", json!("https://other.example")),
        ("iss", json!(format!("{}/", provider.issuer()))),
        ("aud", json!("https://another.example")),
        ("aud", Value::Null),
        ("exp", Value::Null),
        ("exp", json!("soon")),
        ("nbf", json!(now() + 120)),
        ("iat", json!(now() + 120)),
        ("sub", Value::Null),
    ] {
        refused(&assume(&provider.claims_with(claim, value)), 400, "InvalidIdentityToken");
    }
    refused(&assume(&provider.claims_with("exp", json!(now() - 120))), 400, "ExpiredTokenException");
    let token = key.token("k", &provider.claims());
    refused(&ground.assume_role("nobody", &token), 403, "AccessDenied");
    refused(&ground.assume(&format!("{token}&Policy=%7B%7D")), 400, "ValidationError");
    refused(&ground.assume(&format!("{token}&DurationSeconds=3601")), 400, "ValidationError");
    refused(&ground.assume("&WebIdentityToken="), 400, "ValidationError");
}

#[test]
fn forged_tokens_are_refused() {
    let provider = Provider::start();
    let (rsa, p256) = (Key::rsa(), Key::p256());
    provider.keys(&[("r", &rsa), ("p", &p256)]);
    let ground = Ground::new(&provider);
    let claims = provider.claims();
    let good = rsa.token("r", &claims);
    ground.assume(&good).ok();
    let sealed = |header: Value, signature: &[u8]| {
        format!("{}.{}", unsigned(&header, &claims), URL_SAFE_NO_PAD.encode(signature))
    };
    // A forged token uses the public key as the secret of a symmetric algorithm.
    let confused = |secret: &[u8]| {
        let signed = unsigned(&json!({"alg": "HS256", "kid": "r"}), &claims);
        let mac = Hmac::<sha2::Sha256>::new_from_slice(secret).unwrap().chain_update(&signed);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
    };
    let parts: Vec<&str> = good.split('.').collect();
    let other_claims = URL_SAFE_NO_PAD.encode(provider.claims_with("sub", json!("root")).to_string());
    let of_another = Key::p256();
    for forged in [
        confused(rsa.jwk("r").to_string().as_bytes()),
        confused(b""),
        sealed(json!({"alg": "none"}), b""),
        sealed(json!({"alg": "RS256", "kid": "r"}), b""),
        sealed(json!({"alg": "RS256", "kid": "p"}), &[1; 256]),
        sealed(json!({"alg": "ES256", "kid": "p"}), &[0; 64]),
        sealed(json!({"alg": "ES256", "kid": "p", "crit": ["x"]}), &[0; 64]),
        format!("{}.{other_claims}.{}", parts[0], parts[2]),
        format!("{}.{}.", parts[0], parts[1]),
        of_another.token("p", &claims),
        of_another.token("r", &claims),
        p256.token("r", &claims),
        "x".to_owned(),
        "a.b.c".to_owned(),
    ] {
        refused(&ground.assume(&forged), 400, "InvalidIdentityToken");
    }
    ground.assume(&p256.token("p", &claims)).ok();
}

#[test]
fn new_keys_are_found_and_inventions_are_not_looked_for_again() {
    let provider = Provider::start();
    let (old, new) = (Key::p256(), Key::ed25519());
    provider.keys(&[("old", &old)]);
    let ground = Ground::new(&provider);
    ground.assume(&old.token("old", &provider.claims())).ok();
    provider.keys(&[("old", &old), ("new", &new)]);
    ground.assume(&new.token("new", &provider.claims())).ok();
    let before = provider.requests();
    assert_eq!(before, 4);
    for _ in 0..5 {
        let invented = new.token("invented", &provider.claims());
        refused(&ground.assume(&invented), 400, "InvalidIdentityToken");
    }
    assert_eq!(provider.requests(), before);
    ground.assume(&old.token("old", &provider.claims())).ok();
}

/// A provider may replace a key without changing its ID, or give its keys no IDs.
#[test]
fn a_new_key_with_a_known_id_is_found() {
    for id in [Some("k"), None] {
        let provider = Provider::start();
        let (old, new) = (Key::p256(), Key::p256());
        let token = |key: &Key| match id {
            Some(id) => key.token(id, &provider.claims()),
            None => key.token_without_id(&provider.claims()),
        };
        provider.keys(&[("k", &old)]);
        let ground = Ground::new(&provider);
        ground.assume(&token(&old)).ok();
        provider.keys(&[("k", &new)]);
        ground.assume(&token(&new)).ok();
        refused(&ground.assume(&token(&old)), 400, "InvalidIdentityToken");
        assert_eq!(provider.requests(), 4, "the keys were not fetched again for the old key");
    }
}

#[test]
fn providers_that_answer_wrongly_are_refused() {
    let key = Key::p256();
    let discovery = "/.well-known/openid-configuration";
    type Change = Box<dyn Fn(&Provider)>;
    let changes: Vec<(&str, Change)> = vec![
        ("gone", Box::new(|provider| drop(provider.responses.lock().unwrap().remove("/jwks")))),
        ("no discovery", Box::new(move |provider| provider.set(discovery, ok("<html>")))),
        ("closed", Box::new(|provider| provider.set("/jwks", String::new()))),
        ("not keys", Box::new(|provider| provider.set("/jwks", ok("[]")))),
        ("no keys", Box::new(|provider| provider.set("/jwks", ok("{\"keys\":[]}")))),
        (
            "huge",
            Box::new(|provider| {
                provider.set("/jwks", ok(&format!("{{\"keys\":[]{}}}", " ".repeat(1024 * 1024))));
            }),
        ),
        (
            "redirect",
            Box::new(|provider| {
                let to = format!("{}/elsewhere", provider.issuer());
                provider.set(
                    "/jwks",
                    format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"),
                );
            }),
        ),
        (
            "another issuer",
            Box::new(move |provider| {
                let document =
                    json!({"issuer": "https://x", "jwks_uri": format!("{}/jwks", provider.issuer())});
                provider.set(discovery, ok(&document.to_string()));
            }),
        ),
        ("keys elsewhere", Box::new(|provider| provider.discover("http://127.0.0.2:1/jwks"))),
    ];
    for (what, change) in changes {
        let provider = Provider::start();
        provider.keys(&[("k", &key)]);
        change(&provider);
        let ground = Ground::new(&provider);
        let answer = ground.assume(&key.token("k", &provider.claims()));
        assert_eq!(answer.error(), (400, "IDPCommunicationError".to_owned()), "{what}: {}", answer.text());
        let before = provider.requests();
        refused(&ground.assume(&key.token("k", &provider.claims())), 400, "IDPCommunicationError");
        assert_eq!(provider.requests(), before, "{what}: asked again immediately");
    }
}

#[test]
fn private_addresses_need_permission() {
    let provider = Provider::start();
    let issuer = format!("https://{}", provider.address);
    let ground = Ground::with(&format!("[[oidc]]\nissuer='{issuer}'\naudience=['{AUDIENCE}']\n"), &issuer);
    let claims = json!({"iss": issuer, "sub": "s", "aud": AUDIENCE, "exp": now() + 600});
    refused(&ground.assume(&Key::p256().token("k", &claims)), 400, "IDPCommunicationError");
    assert_eq!(provider.requests(), 0);
}

/// The gateway asks the proxy only for hosts that the credentials file permits.
#[test]
fn a_provider_is_reached_through_a_proxy() {
    let dir = tempfile::tempdir().unwrap();
    let ca_bundle = dir.path().join("ca.pem");
    let (provider, proxy, key) = (Provider::start_tls(&ca_bundle), TunnelProxy::start(), Key::p256());
    provider.keys(&[("k", &key)]);
    let entry = |ca_bundle: &str, proxy: &str| {
        let issuer = provider.issuer();
        format!("[[oidc]]\nissuer='{issuer}'\naudience=['{AUDIENCE}']\nproxy='{proxy}'\n{ca_bundle}")
    };
    let trusted = format!("ca_bundle='{}'\n", ca_bundle.display());
    let by_proxy = format!("http://{}", proxy.address);
    let assume =
        |oidc: &str| Ground::with(oidc, &provider.issuer()).assume(&key.token("k", &provider.claims()));
    // The proxy's own address is private, and the entry has no `allow_private`.
    assume(&entry(&trusted, &by_proxy)).ok();
    let line = format!("CONNECT {NAME}:{} HTTP/1.1", provider.address.port());
    assert_eq!(proxy.asked(), [&*line, &*line], "the discovery document and the keys");
    let failed = (400, "IDPCommunicationError".to_owned());
    assert_eq!(assume(&entry("", &by_proxy)).error(), failed, "the certificate is checked through the proxy");
    assert_eq!(assume(&entry(&trusted, "")).error(), failed, "only the proxy can resolve the name");
    let before = proxy.asked().len();
    provider.discover("https://elsewhere.test/jwks");
    assert_eq!(assume(&entry(&trusted, &by_proxy)).error(), failed);
    assert_eq!(proxy.asked()[before..], [&*line], "the keys are at a host that the users file does not name");
    let inside = entry(&trusted, &by_proxy).replace(NAME, "127.0.0.1");
    let claims = provider.claims_with("iss", json!(provider.issuer().replace(NAME, "127.0.0.1")));
    let ground = Ground::with(&inside, &provider.issuer().replace(NAME, "127.0.0.1"));
    assert_eq!(ground.assume(&key.token("k", &claims)).error(), failed);
    assert_eq!(proxy.asked().len(), before + 1, "a private address is not asked for");
}

#[test]
fn claims_state_whom_a_role_acts_as() {
    let provider = Provider::start();
    let key = Key::p256();
    provider.keys(&[("k", &key)]);
    let oidc =
        format!("[[oidc]]\nissuer='{}'\naudience=['{AUDIENCE}']\nallow_private=true\n", provider.issuer());
    // Each opening of the store creates a file, whose owner is the user who opened the store.
    let (place, owners) = (tempfile::tempdir().unwrap(), Arc::new(Mutex::new(Vec::new())));
    std::fs::set_permissions(place.path(), Permissions::from_mode(0o777)).unwrap();
    let (path, seen) = (place.path().to_owned(), owners.clone());
    let opened = move || {
        let mut seen = seen.lock().unwrap();
        let file = std::fs::File::create(path.join(seen.len().to_string())).unwrap().metadata().unwrap();
        seen.push((file.uid(), file.gid()));
    };
    let role = "name='cms'\nuid_claim='uid'\ngid_claim='gid'\nid_min=2000\n";
    let ground = Ground::start(&oidc, &provider.issuer(), role, opened);
    if fordway_sys::user_id() != 0 {
        let refused = ground.err().expect("only root acts as others");
        assert!(refused.to_string().contains("only a gateway that root runs"), "{refused}");
        return;
    }
    let ground = ground.unwrap();
    let assume = |uid: Value, gid: Value| {
        let mut claims = provider.claims_with("uid", uid);
        claims["gid"] = gid;
        ground.assume(&key.token("k", &claims))
    };
    let before = owners.lock().unwrap().len();
    let answer = assume(json!(2001), json!("2002")).ok();
    assert_eq!(owners.lock().unwrap()[before..], [(2001, 2002)]);
    let text = |name: &str| answer.element(name).unwrap_or_default();
    let client = ground.client(&text("AccessKeyId"), &text("SecretAccessKey"));
    let token = text("SessionToken");
    let get = Call::on("GET", "k").header("x-amz-security-token", &token);
    assert_eq!(client.send(&get).ok().text(), "hello");
    assert_eq!(owners.lock().unwrap().len(), before + 1, "the store is opened once for each user");
    for (uid, gid) in [(1999, 2002), (2001, 1999), (0, 2002)] {
        refused(&assume(json!(uid), json!(gid)), 403, "AccessDenied");
    }
    for bad in [Value::Null, json!("root"), json!(-1), json!(1u64 << 32), json!(2001.5), json!("4294969297")]
    {
        refused(&assume(bad.clone(), json!(2002)), 403, "IDPRejectedClaim");
        refused(&assume(json!(2001), bad), 403, "IDPRejectedClaim");
    }
    assert_eq!(owners.lock().unwrap().len(), before + 1);
}

/// The limits of a role apply to each user whom the claims state, so that no user can use up the limits of the others.
#[test]
fn each_user_of_a_role_has_limits_of_their_own() {
    // `claims_state_whom_a_role_acts_as` checks that any other gateway refuses such a role.
    if fordway_sys::user_id() != 0 {
        return;
    }
    let (provider, key) = (Provider::start(), Key::p256());
    provider.keys(&[("k", &key)]);
    let oidc =
        format!("[[oidc]]\nissuer='{}'\naudience=['{AUDIENCE}']\nallow_private=true\n", provider.issuer());
    let role = "name='cms'\nuid_claim='uid'\ngid_claim='gid'\nid_min=2000\nrequests=1\n";
    let ground = Ground::start(&oidc, &provider.issuer(), role, || ()).unwrap();
    let session = |uid: u32| {
        let mut claims = provider.claims_with("uid", json!(uid));
        claims["gid"] = json!(2000);
        let answer = ground.assume(&key.token("k", &claims)).ok();
        let text = |name: &str| answer.element(name).unwrap_or_default();
        (ground.client(&text("AccessKeyId"), &text("SecretAccessKey")), text("SessionToken"))
    };
    let [(slow, slow_token), (other, other_token)] = [2001, 2002].map(session);
    let put = Call::on("PUT", "u").payload("UNSIGNED-PAYLOAD").body(vec![1; 100_000]);
    let mut upload = slow.connect();
    upload.write_all(&slow.head(&put.header("x-amz-security-token", &slow_token))).unwrap();
    let get = |token: &str| Call::on("GET", "k").header("x-amz-security-token", token);
    let refused = (0..1000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        slow.send(&get(&slow_token)).status == 503
    });
    assert!(refused, "the upload is in flight");
    other.send(&get(&other_token)).ok();
    let (again, again_token) = session(2002);
    again.send(&get(&again_token)).ok();
    assert_eq!(slow.send(&get(&slow_token)).error(), (503, "SlowDown".to_owned()));
}

#[test]
fn a_provider_may_limit_its_algorithms() {
    let provider = Provider::start();
    let (rsa, p256) = (Key::rsa(), Key::p256());
    provider.keys(&[("r", &rsa), ("p", &p256)]);
    let oidc = format!(
        "[[oidc]]\nissuer='{}'\naudience=['{AUDIENCE}']\nallow_private=true\nalgorithms=['RS256']\n",
        provider.issuer()
    );
    let ground = Ground::with(&oidc, &provider.issuer());
    ground.assume(&rsa.token("r", &provider.claims())).ok();
    refused(&ground.assume(&p256.token("p", &provider.claims())), 400, "InvalidIdentityToken");
}
