//! Tests the token service, and S3 with the temporary credentials that it issues.

mod client;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use client::http2::{Http2, push, run, take};
use client::{Answer, BUCKET, Call, Client};
use fordway_serve::{
    AccessKeyPair, Gateway, GatewayConfig, RunningGateway, SessionTokenKeys, StoreOpenFunction, Users,
};
use fordway_store::{MemoryStore, Objects, PutOptions};
use fordway_wire::date::UtcTime;
use fordway_wire::sigv4::{CanonicalRequest, SigningKey, payload_hash};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

const SESSION_KEY: &str = "0123456789abcdef0123456789abcdef";

/// A gateway over an in-memory store, with a credentials file and a session key.
struct Ground {
    dir: tempfile::TempDir,
    gateway: RunningGateway,
}

impl Ground {
    fn new(credentials: &str) -> Self {
        Ground::with(credentials, |_| ())
    }

    fn with(credentials: &str, change: impl FnOnce(&mut GatewayConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = MemoryStore::default();
        store.create_bucket(&client::bucket()).unwrap();
        store.put(&client::bucket(), &client::key("k"), b"hello", &PutOptions::default()).unwrap();
        private_file(&dir.path().join("users.toml"), credentials);
        private_file(&dir.path().join("key"), SESSION_KEY);
        std::fs::create_dir(dir.path().join("root")).unwrap();
        let open: StoreOpenFunction = Arc::new(move || Ok(Arc::new(store.clone())));
        let users = Users::from_file(&dir.path().join("users.toml"), &dir.path().join("root"), open).unwrap();
        let mut config = GatewayConfig::new(([127, 0, 0, 1], 0).into());
        config.threads = 2;
        config.session_key = Some(SessionTokenKeys::load(&dir.path().join("key")).unwrap());
        change(&mut config);
        Ground { dir, gateway: Gateway::bind(users, config).unwrap().spawn().unwrap() }
    }

    /// Replaces the credentials file, and waits until the gateway has read it.
    fn rewrite(&self, credentials: &str, is_read: impl Fn() -> bool) {
        private_file(&self.dir.path().join("users.toml"), credentials);
        self.gateway.reload_handle().trigger();
        let begin = std::time::Instant::now();
        while !is_read() {
            assert!(begin.elapsed() < Duration::from_secs(20), "the file was not read");
            std::thread::yield_now();
        }
    }

    fn signer(&self, access_key: &str, secret_key: &str) -> Client {
        let (access_key, secret_key) = (access_key.to_owned(), secret_key.to_owned());
        let identity = AccessKeyPair { access_key, secret_key };
        Client { address: self.gateway.local_addr(), identity, clock_offset_s: 0, dates_by_date: false }
    }

    fn alice(&self) -> Client {
        self.signer("ALICE", "alice-secret")
    }

    fn in_session(&self, session: &Credentials) -> Client {
        self.signer(&session.access_key, &session.secret_key)
    }

    /// Returns a session of Alice.
    fn session(&self) -> Credentials {
        Credentials::of(&sts(&self.alice(), None, "Action=GetSessionToken&Version=2011-06-15").ok())
    }
}

fn private_file(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::set_permissions(&new, Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&new, path).unwrap();
}

/// Returns the entry of a user with the uid of this test's process.
fn user(name: &str, secret: &str) -> String {
    let (uid, gid) = (fordway_sys::user_id(), fordway_sys::group_id());
    let key = name.to_uppercase();
    format!("[[user]]\nname='{name}'\naccess_key='{key}'\nsecret_key='{secret}'\nuid={uid}\ngid={gid}\n")
}

fn alice() -> String {
    user("alice", "alice-secret")
}

struct Credentials {
    access_key: String,
    secret_key: String,
    token: String,
}

impl Credentials {
    fn of(answer: &Answer) -> Self {
        let text = |name: &str| answer.element(name).unwrap_or_else(|| panic!("{name} in {}", answer.text()));
        Credentials {
            access_key: text("AccessKeyId"),
            secret_key: text("SecretAccessKey"),
            token: text("SessionToken"),
        }
    }
}

/// Sends a signed form to the token service.
fn sts(client: &Client, token: Option<&str>, form: &str) -> Answer {
    sts_at(client, token, form, SystemTime::now())
}

fn sts_at(client: &Client, token: Option<&str>, form: &str, now: SystemTime) -> Answer {
    let (host, date) = (client.address.to_string(), UtcTime::from(now).amz_date());
    let mut headers =
        vec![("content-type", "application/x-www-form-urlencoded"), ("host", &host), ("x-amz-date", &date)];
    headers.extend(token.map(|token| ("x-amz-security-token", token)));
    let request = CanonicalRequest {
        method: "POST",
        path: "/",
        query: "",
        headers: &headers,
        payload_hash: &payload_hash(form.as_bytes()),
    };
    let AccessKeyPair { access_key, secret_key } = &client.identity;
    let key = SigningKey::new(secret_key, now, "us-east-1", "sts");
    let authorization = key.authorization(access_key, now, &request);
    post(client, &headers, Some(&authorization), form)
}

fn post(client: &Client, headers: &[(&str, &str)], authorization: Option<&str>, form: &str) -> Answer {
    let mut head = "POST / HTTP/1.1\r\nconnection: close\r\n".to_owned();
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    if let Some(value) = authorization {
        head += &format!("authorization: {value}\r\n");
    }
    client.send_raw("POST", &format!("{head}content-length: {}\r\n\r\n{form}", form.len()))
}

fn get(token: &str) -> Call<'_> {
    Call::on("GET", "k").header("x-amz-security-token", token)
}

#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!(answer.error(), (status, code.to_owned()), "{}", answer.text());
}

#[test]
fn a_user_works_with_temporary_credentials() {
    let ground = Ground::new(&alice());
    let session = ground.session();
    assert!(session.access_key.starts_with("ASIA"));
    let client = ground.in_session(&session);
    assert_eq!(client.send(&get(&session.token)).ok().text(), "hello");
    let put = Call::on("PUT", "new").header("x-amz-security-token", &session.token).body("new");
    client.send(&put).ok();
    let list = Call::new("GET", format!("/{BUCKET}")).query("list-type=2");
    let listed = client.send(&list.header("x-amz-security-token", &session.token)).ok();
    assert_eq!(listed.elements("Key"), ["k", "new"]);
    // If the URL of a request is presigned, the token need not be in a header.
    let presigned = presigned(&client, &session.token);
    assert_eq!(client.send_raw("GET", &presigned).ok().text(), "hello");
}

/// Returns a request for the object `k` with a presigned URL.
fn presigned(client: &Client, token: &str) -> String {
    let (now, host) = (SystemTime::now(), client.address.to_string());
    let path = format!("/{BUCKET}/k");
    let request =
        fordway_wire::sigv4::PresignedRequest { method: "GET", host: &host, path: &path, parameters: &[] };
    let AccessKeyPair { access_key, secret_key } = &client.identity;
    let query = SigningKey::new(secret_key, now, "us-east-1", "s3").presigned_query(
        access_key,
        Some(token),
        now,
        600,
        &request,
    );
    format!("GET {path}?{query} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n")
}

/// Uploads the object `form` with an HTML form whose policy `client` has signed.
fn upload(client: &Client, token: Option<&str>) -> Answer {
    let names = ["algorithm", "credential", "date"];
    let mut conditions = names.map(|name| format!("[\"starts-with\",\"$x-amz-{name}\",\"\"]")).join(",");
    if let Some(token) = token {
        conditions += &format!(",[\"eq\",\"$x-amz-security-token\",\"{token}\"]");
    }
    let policy = format!(
        "{{\"expiration\":\"2100-01-01T00:00:00Z\",\"conditions\":[{{\"bucket\":\"{BUCKET}\"}},\
         {{\"key\":\"form\"}},{conditions}]}}"
    );
    let mut fields = client.form_fields(&policy);
    fields.push(("key", "form".to_owned()));
    fields.extend(token.map(|token| ("x-amz-security-token", token.to_owned())));
    let part = |name: &str, value: &str| {
        format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let parts: String = fields.iter().map(|(name, value)| part(name, value)).collect();
    let body = parts + &part("file", "content") + "--B--\r\n";
    let head = format!(
        "POST /{BUCKET} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n\
         content-type: multipart/form-data; boundary=B\r\n\r\n",
        client.address,
        body.len()
    );
    client.send_raw("POST", &(head + &body))
}

#[test]
fn a_form_is_signed_with_temporary_credentials() {
    let ground = Ground::new(&alice());
    let (session, other) = (ground.session(), ground.session());
    let client = ground.in_session(&session);
    upload(&client, Some(&session.token)).ok();
    refused(&upload(&client, None), 403, "InvalidAccessKeyId");
    refused(&upload(&client, Some(&other.token)), 400, "InvalidToken");
    refused(&upload(&client, Some("forged")), 400, "InvalidToken");
    refused(&upload(&ground.alice(), Some(&session.token)), 400, "InvalidToken");
    let wrong = ground.signer(&session.access_key, &other.secret_key);
    refused(&upload(&wrong, Some(&session.token)), 403, "SignatureDoesNotMatch");
}

#[test]
fn credentials_belong_together() {
    let ground = Ground::new(&alice());
    let (one, other) = (ground.session(), ground.session());
    let client = ground.in_session(&one);
    refused(&client.send(&Call::on("GET", "k")), 403, "InvalidAccessKeyId");
    refused(&client.send(&get(&other.token)), 400, "InvalidToken");
    refused(&client.send(&get("forged")), 400, "InvalidToken");
    refused(&client.send(&get("")), 400, "InvalidToken");
    refused(&ground.alice().send(&get(&one.token)), 400, "InvalidToken");
    refused(&client.send_raw("GET", &presigned(&client, &other.token)), 400, "InvalidToken");
    refused(&client.send_raw("GET", &presigned(&ground.alice(), &one.token)), 400, "InvalidToken");
    let wrong = ground.signer(&one.access_key, &other.secret_key);
    refused(&wrong.send(&get(&one.token)), 403, "SignatureDoesNotMatch");
    assert_eq!(ground.alice().send(&Call::on("GET", "k")).ok().text(), "hello");
}

#[test]
fn an_unsigned_token_is_refused() {
    let ground = Ground::new(&alice());
    let session = ground.session();
    let client = ground.in_session(&session);
    let head = String::from_utf8(client.head(&Call::on("GET", "k"))).unwrap();
    let with_token = head.replacen("\r\n", &format!("\r\nx-amz-security-token: {}\r\n", session.token), 1);
    refused(&client.send_raw("GET", &with_token), 403, "AccessDenied");
    // A token without a signature does not identify a user.
    let bare = format!(
        "GET /{BUCKET}/k HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx-amz-security-token: {}\r\n\r\n",
        session.token
    );
    refused(&client.send_raw("GET", &bare), 403, "AccessDenied");
}

#[test]
fn sessions_end_with_their_user_and_with_the_users_secret() {
    let ground = Ground::new(&format!("{}{}", alice(), user("bob", "bob-secret")));
    let session = ground.session();
    let client = ground.in_session(&session);
    client.send(&get(&session.token)).ok();
    ground.rewrite(&user("alice", "new-secret"), || ground.alice().send(&Call::on("GET", "k")).status == 403);
    refused(&client.send(&get(&session.token)), 403, "SignatureDoesNotMatch");
    ground.rewrite(&user("bob", "bob-secret"), || {
        ground.signer("ALICE", "new-secret").send(&Call::on("GET", "k")).status == 403
    });
    refused(&client.send(&get(&session.token)), 400, "InvalidToken");
    refused(&sts(&client, Some(&session.token), "Action=GetCallerIdentity"), 403, "InvalidClientTokenId");
}

#[test]
fn gateways_with_one_key_accept_each_others_tokens() {
    let ground = Ground::new(&alice());
    let other = Ground::new(&alice());
    let stranger = Ground::with(&alice(), |config| config.session_key = None);
    let session = ground.session();
    assert_eq!(other.in_session(&session).send(&get(&session.token)).ok().text(), "hello");
    refused(&stranger.in_session(&session).send(&get(&session.token)), 400, "InvalidToken");
    let own = stranger.session();
    assert_eq!(stranger.in_session(&own).send(&get(&own.token)).ok().text(), "hello");
}

/// Returns credentials whose token has the content `document` and is authenticated with the gateway's key.
fn made(document: &str) -> Credentials {
    let mac = |key: &[u8], parts: &[&[u8]]| {
        let mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        parts.iter().fold(mac, |mac, part| mac.chain_update(part)).finalize().into_bytes()
    };
    let derived = |purpose: &[u8]| mac(SESSION_KEY.as_bytes(), &[purpose]);
    let tag = mac(&derived(b"fordway session token 1"), &[document.as_bytes()]);
    let token = URL_SAFE_NO_PAD.encode([&tag[..], document.as_bytes()].concat());
    let secret = derived(b"fordway session secret 1");
    let secret = mac(&secret, &[token.as_bytes(), b"\0", b"alice-secret"]);
    Credentials {
        access_key: "ASIAMADE".to_owned(),
        secret_key: URL_SAFE_NO_PAD.encode(&secret[..30]),
        token,
    }
}

#[test]
fn expired_tokens_are_refused() {
    let ground = Ground::new(&alice());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let token = |expires_s: u64| {
        made(&format!(
            "{{\"access_key\":\"ASIAMADE\",\"parent\":{{\"user\":\"ALICE\"}},\"issued_s\":1,\"expires_s\":{expires_s}}}"
        ))
    };
    let (valid, expired) = (token(now + 600), token(now));
    ground.in_session(&valid).send(&get(&valid.token)).ok();
    refused(&ground.in_session(&expired).send(&get(&expired.token)), 400, "ExpiredToken");
    let client = ground.in_session(&expired);
    refused(&sts(&client, Some(&expired.token), "Action=GetCallerIdentity"), 403, "ExpiredToken");
    refused(&client.send_raw("GET", &presigned(&client, &expired.token)), 400, "ExpiredToken");
}

#[test]
fn callers_learn_who_they_are() {
    let ground = Ground::new(&alice());
    let answer = sts(&ground.alice(), None, "Action=GetCallerIdentity&Version=2011-06-15").ok();
    assert_eq!(answer.element("Arn").as_deref(), Some("arn:aws:iam:::user/alice"));
    assert_eq!(answer.element("UserId").as_deref(), Some("alice"));
    assert_eq!(answer.header("content-type"), Some("text/xml"));
    assert_eq!(answer.element("RequestId").as_deref(), answer.header("x-amz-request-id"));
    let session = ground.session();
    let client = ground.in_session(&session);
    let same = sts(&client, Some(&session.token), "Action=GetCallerIdentity").ok();
    assert_eq!(same.element("Arn").as_deref(), Some("arn:aws:iam:::user/alice"));
    let again = sts(&client, Some(&session.token), "Action=GetSessionToken");
    refused(&again, 403, "AccessDenied");
}

/// Requests over HTTP/2 have no `Host` header, but their signatures cover this header.
#[test]
fn the_token_service_answers_over_http2() {
    let ground = Ground::new(&alice());
    run(async {
        let http2 = Http2::connect(&ground.alice()).await;
        let (form, now) = ("Action=GetCallerIdentity", SystemTime::now());
        let (host, date) = (ground.gateway.local_addr().to_string(), UtcTime::from(now).amz_date());
        let kind = ("content-type", "application/x-www-form-urlencoded");
        let request = CanonicalRequest {
            method: "POST",
            path: "/",
            query: "",
            headers: &[kind, ("host", &host), ("x-amz-date", &date)],
            payload_hash: &payload_hash(form.as_bytes()),
        };
        let authorization =
            SigningKey::new("alice-secret", now, "us-east-1", "sts").authorization("ALICE", now, &request);
        let head = http::Request::post(format!("http://{host}/"))
            .header(kind.0, kind.1)
            .header("x-amz-date", date)
            .header("authorization", authorization);
        let mut send = http2.send.clone().ready().await.unwrap();
        let (response, mut upload) = send.send_request(head.body(()).unwrap(), false).unwrap();
        push(&mut upload, form.as_bytes(), true).await.unwrap();
        let (parts, mut body) = response.await.unwrap().into_parts();
        let body = String::from_utf8(take(&mut body).await.unwrap()).unwrap();
        assert_eq!(parts.status, 200, "{body}");
        assert!(body.contains("user/alice"), "{body}");
    });
}

#[test]
fn requests_for_the_token_service_are_checked() {
    let ground = Ground::new(&alice());
    let alice = ground.alice();
    for (form, status, code) in [
        ("", 400, "MissingAction"),
        ("Action=GetFederationToken", 400, "InvalidAction"),
        ("Action=GetSessionToken&Version=2010-01-01", 400, "InvalidAction"),
        ("Action=GetSessionToken&DurationSeconds=899", 400, "ValidationError"),
        ("Action=GetSessionToken&DurationSeconds=129601", 400, "ValidationError"),
        ("Action=GetSessionToken&SerialNumber=1&TokenCode=2", 400, "ValidationError"),
        ("Action=GetCallerIdentity&Policy=%7B%7D", 400, "ValidationError"),
        ("Action=GetCallerIdentity&Action=GetSessionToken", 400, "ValidationError"),
    ] {
        refused(&sts(&alice, None, form), status, code);
    }
    let form = "Action=GetCallerIdentity";
    refused(&sts(&ground.signer("NOBODY", "x"), None, form), 403, "InvalidClientTokenId");
    refused(&sts(&ground.signer("ALICE", "x"), None, form), 403, "SignatureDoesNotMatch");
    let long_ago = SystemTime::now() - Duration::from_secs(16 * 60);
    refused(&sts_at(&alice, None, form, long_ago), 403, "SignatureDoesNotMatch");
    let ahead = SystemTime::now() + Duration::from_secs(16 * 60);
    refused(&sts_at(&alice, None, form, ahead), 403, "SignatureDoesNotMatch");
    let form_type = [("host", "h"), ("content-type", "application/x-www-form-urlencoded; charset=utf-8")];
    refused(&post(&alice, &form_type, None, form), 403, "MissingAuthenticationToken");
    refused(&post(&alice, &form_type, Some("AWS A:B"), form), 400, "IncompleteSignature");
    let large = format!("{form}&X={}", "x".repeat(70_000));
    refused(&sts(&alice, None, &large), 413, "ValidationError");
}

/// Returns the entry of a role with the uid of this test's process.
fn role(name: &str, more: &str) -> String {
    let (uid, gid) = (fordway_sys::user_id(), fordway_sys::group_id());
    format!("[[role]]\nname='{name}'\nuid={uid}\ngid={gid}\n{more}\n")
}

fn assume(client: &Client, token: Option<&str>, role: &str, more: &str) -> Answer {
    let arn = format!("arn%3Aaws%3Aiam%3A%3A000000000000%3Arole%2F{role}");
    let form = format!("Action=AssumeRole&Version=2011-06-15&RoleSessionName=job-1&RoleArn={arn}{more}");
    sts(client, token, &form)
}

#[test]
fn users_assume_the_roles_that_name_them() {
    let readers = role("readers", "read_only=true\nassumed_by=['alice']\nmax_duration_s=7200");
    let file = format!("{}{}{readers}", alice(), user("bob", "bob-secret"));
    let ground = Ground::new(&file);
    let bob = ground.signer("BOB", "bob-secret");
    let answer = assume(&ground.alice(), None, "readers", "").ok();
    let arn = "arn:aws:sts:::assumed-role/readers/job-1";
    assert_eq!(answer.element("Arn").as_deref(), Some(arn));
    assert_eq!(answer.element("AssumedRoleId").as_deref(), Some("readers:job-1"));
    let session = Credentials::of(&answer);
    let client = ground.in_session(&session);
    assert_eq!(client.send(&get(&session.token)).ok().text(), "hello");
    let put = Call::on("PUT", "new").header("x-amz-security-token", &session.token).body("new");
    refused(&client.send(&put), 403, "AccessDenied");
    let identity = sts(&client, Some(&session.token), "Action=GetCallerIdentity").ok();
    assert_eq!(identity.element("Arn").as_deref(), Some(arn));

    refused(&assume(&bob, None, "readers", ""), 403, "AccessDenied");
    refused(&assume(&bob, None, "writers", ""), 403, "AccessDenied");
    refused(&assume(&client, Some(&session.token), "readers", ""), 403, "AccessDenied");
    refused(&sts(&client, Some(&session.token), "Action=GetSessionToken"), 403, "AccessDenied");
    // A session of a user may assume a role.
    let of_user = ground.session();
    let chained = assume(&ground.in_session(&of_user), Some(&of_user.token), "readers", "");
    let chained = Credentials::of(&chained.ok());
    assert_eq!(ground.in_session(&chained).send(&get(&chained.token)).ok().text(), "hello");
}

#[test]
fn requests_for_a_role_are_checked() {
    let readers = role("readers", "assumed_by=['alice']\nmax_duration_s=7200");
    let ground = Ground::new(&format!("{}{readers}", alice()));
    assume(&ground.alice(), None, "readers", "&DurationSeconds=7200").ok();
    assume(&ground.alice(), None, "readers", "&ExternalId=x").ok();
    for more in ["&DurationSeconds=7201", "&DurationSeconds=899"] {
        refused(&assume(&ground.alice(), None, "readers", more), 400, "ValidationError");
    }
    for (more, why) in [
        ("&Policy=%7B%7D", "Policy is not supported here, because sessions have all permissions"),
        ("&SourceIdentity=x", "SourceIdentity is not supported here, because neither tokens nor policies"),
        ("&ProviderId=x", "ProviderId is not supported here, because it is not for OIDC tokens"),
        ("&Unheard=x", "Unheard is not supported here; omit it"),
    ] {
        let answer = assume(&ground.alice(), None, "readers", more);
        assert!(answer.text().contains(why), "{}", answer.text());
        refused(&answer, 400, "ValidationError");
    }
    for form in [
        "Action=AssumeRole&RoleSessionName=job",
        "Action=AssumeRole&RoleArn=readers&RoleSessionName=job",
        "Action=AssumeRole&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Freaders&RoleSessionName=j",
        "Action=AssumeRole&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Freaders&RoleSessionName=j%0Aj",
    ] {
        refused(&sts(&ground.alice(), None, form), 400, "ValidationError");
    }
    for method in ["GET", "POST"] {
        let answer = ground.alice().send(&Call::new(method, "/").query("Action=GetCallerIdentity"));
        assert!(answer.text().contains("send STS requests with POST"), "{}", answer.text());
        refused(&answer, 501, "NotImplemented");
    }
}

#[test]
fn the_arn_of_a_role_may_be_in_any_partition_of_aws() {
    let ground = Ground::new(&format!("{}{}", alice(), role("readers", "assumed_by=['alice']")));
    let of_partition = |partition: &str| {
        let arn = format!("arn%3A{partition}%3Aiam%3A%3A1%3Arole%2Fpath%2Freaders");
        sts(&ground.alice(), None, &format!("Action=AssumeRole&RoleSessionName=job-1&RoleArn={arn}"))
    };
    for partition in ["aws", "aws-cn", "aws-us-gov"] {
        of_partition(partition).ok();
    }
    for partition in ["", "other", "aws%3A", "AWS"] {
        refused(&of_partition(partition), 400, "ValidationError");
    }
}

#[test]
fn sessions_of_a_role_end_when_its_entry_forbids_them() {
    let readers = |who: &str| role("readers", &format!("assumed_by=['{who}']"));
    let users = format!("{}{}", alice(), user("bob", "bob-secret"));
    let ground = Ground::new(&format!("{users}{}", readers("alice")));
    let session = Credentials::of(&assume(&ground.alice(), None, "readers", "").ok());
    let client = ground.in_session(&session);
    client.send(&get(&session.token)).ok();
    let bob = ground.signer("BOB", "bob-secret");
    ground.rewrite(&format!("{users}{}", readers("bob")), || assume(&bob, None, "readers", "").status == 200);
    refused(&client.send(&get(&session.token)), 400, "InvalidToken");
}

#[test]
fn policies_and_logs_name_roles() {
    let readers = role("readers", "assumed_by=['*']");
    let log = tempfile::NamedTempFile::new().unwrap();
    let ground = Ground::with(&format!("{}{readers}", alice()), |config| {
        config.access_log = Some(log.path().to_owned());
    });
    let session = Credentials::of(&assume(&ground.alice(), None, "readers", "").ok());
    let client = ground.in_session(&session);
    let deny = |principal: &str, condition: &str| {
        let policy = format!(
            "{{\"Version\":\"2012-10-17\",\"Statement\":{{\"Effect\":\"Deny\",\"Principal\":{principal},\
             \"Action\":\"s3:GetObject\",\"Resource\":\"arn:aws:s3:::{BUCKET}/*\"{condition}}}}}"
        );
        let put = Call::new("PUT", format!("/{BUCKET}")).query("policy").body(policy);
        ground.alice().send(&put).ok();
    };
    let is =
        |key: &str, value: &str| format!(",\"Condition\":{{\"StringEquals\":{{\"{key}\":\"{value}\"}}}}");
    for (principal, condition) in [
        ("{\"AWS\":\"arn:aws:iam:::role/readers\"}", String::new()),
        ("{\"AWS\":\"arn:aws:sts:::assumed-role/readers/job-1\"}", String::new()),
        ("\"*\"", is("aws:PrincipalArn", "arn:aws:sts:::assumed-role/readers/job-1")),
        ("\"*\"", is("aws:PrincipalArn", "arn:aws:iam:::role/readers")),
        ("\"*\"", is("aws:userid", "readers:job-1")),
        ("\"*\"", is("aws:PrincipalType", "AssumedRole")),
        ("\"*\"", ",\"Condition\":{\"Null\":{\"aws:TokenIssueTime\":\"false\"}}".to_owned()),
    ] {
        deny(principal, &condition);
        refused(&client.send(&get(&session.token)), 403, "AccessDenied");
        ground.alice().send(&Call::on("GET", "k")).ok();
    }
    for other in ["arn:aws:iam:::user/readers", "arn:aws:sts:::assumed-role/readers/job-2"] {
        deny(&format!("{{\"AWS\":\"{other}\"}}"), "");
        client.send(&get(&session.token)).ok();
    }
    drop(ground);
    let text = std::fs::read_to_string(log.path()).unwrap();
    assert!(text.contains("\"user\":\"readers/job-1\",\"operation\":\"GetObject\""), "{text}");
    assert!(text.contains("\"user\":\"alice\",\"operation\":\"AssumeRole\""), "{text}");
}

#[test]
fn a_gateway_with_one_key_pair_issues_tokens() {
    let fixture = client::serve();
    fixture.store.put(&client::bucket(), &client::key("k"), b"hello", &PutOptions::default()).unwrap();
    let session = Credentials::of(&sts(&fixture.client, None, "Action=GetSessionToken").ok());
    let identity =
        AccessKeyPair { access_key: session.access_key.clone(), secret_key: session.secret_key.clone() };
    let client = Client { identity, ..fixture.client.clone() };
    assert_eq!(client.send(&get(&session.token)).ok().text(), "hello");
}
