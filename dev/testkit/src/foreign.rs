//! Third-party WebDAV servers from Debian's packages. Each server runs on a free port of 127.0.0.1 with its own
//! directory, and is stopped when the test ends.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// The path of Apache httpd's modules on Debian.
const APACHE_MODULES: &str = "/usr/lib/apache2/modules";

/// The path of nginx's module for PROPFIND on Debian.
const NGINX_LISTINGS: &str = "/usr/lib/nginx/modules/ngx_http_dav_ext_module.so";

/// A running server, which is stopped when this value is dropped.
#[derive(Debug)]
pub struct ExternalServerProcess {
    child: Child,
    dir: TempDir,
    port: u16,
    scheme: &'static str,
}

impl Drop for ExternalServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ExternalServerProcess {
    /// Starts Apache httpd with `mod_dav_fs` over HTTP/1.1 and 2, without access restrictions. Returns `None` if Apache
    /// httpd is not installed.
    pub fn apache() -> Option<Self> {
        let program = fordway_needs::program("apache2")?;
        Some(start("http", |dir, port| {
            let modules: String = ["mpm_event", "authz_core", "dav", "dav_fs", "http2"]
                .map(|name| format!("LoadModule {name}_module {APACHE_MODULES}/mod_{name}.so\n"))
                .concat();
            let config = format!(
                "ServerName localhost\nServerRoot {dir}\nListen 127.0.0.1:{port}\nPidFile {dir}/pid\nErrorLog {dir}/log\n\
                 User nobody\nGroup nogroup\n{modules}Protocols h2c http/1.1\nDavLockDB {dir}/own/locks\nDocumentRoot {dir}/files\n\
                 <Location />\nDav On\n</Location>\n"
            );
            std::fs::write(format!("{dir}/config"), config).expect("a configuration");
            command(&program, &["-X", "-f", &format!("{dir}/config")])
        }))
    }

    /// Starts nginx with its own `dav` module, which does not support PROPFIND. Returns `None` if nginx is not
    /// installed.
    pub fn nginx() -> Option<Self> {
        nginx("http", "", "", "")
    }

    /// Like [`ExternalServerProcess::nginx`], with HTTP/2 by prior knowledge and without HTTP/1.1.
    pub fn nginx_with_http2() -> Option<Self> {
        nginx("http", " http2", "", "")
    }

    /// Starts nginx with the module that adds PROPFIND. Returns `None` if nginx or the module is not installed.
    /// Requests for `/forbidden` are refused, and `/moved` redirects to `/f`. `/own` requires the `Authorization:
    /// Bearer token` header, and `/login` requires the user `me` with the password `secret`.
    pub fn nginx_with_listings() -> Option<Self> {
        if !Path::new(NGINX_LISTINGS).exists() {
            fordway_needs::skip(format_args!(
                "{NGINX_LISTINGS} is missing; install libnginx-mod-http-dav-ext"
            ));
            return None;
        }
        let locations = "dav_ext_methods PROPFIND OPTIONS; location /forbidden { return 403; } \
                         location /moved { return 302 /f; } \
                         location /own { if ($http_authorization != 'Bearer token') { return 401; } } \
                         location /login { if ($http_authorization != 'Basic bWU6c2VjcmV0') { return 401; } }";
        nginx("http", "", &format!("load_module {NGINX_LISTINGS};"), locations)
    }

    /// Starts nginx with HTTPS, over HTTP/1.1 and 2. Returns `None` if nginx is not installed. `/cert` requires a
    /// client certificate, which any authority may have signed.
    pub fn nginx_with_tls(authority: &SelfSignedCertificate) -> Option<Self> {
        let (cert, key) = (authority.file(), authority.key());
        let settings = format!(
            "ssl_certificate {}; ssl_certificate_key {}; ssl_verify_client optional_no_ca; \
             location /cert {{ if ($ssl_client_verify = NONE) {{ return 403; }} }}",
            cert.display(),
            key.display(),
        );
        nginx("https", " ssl http2", "", &settings)
    }

    /// Starts Caddy as a reverse proxy in front of this server, over HTTP/1.1, 2 and 3 with the certificate of
    /// `authority`. Returns `None` if Caddy is not installed. Caddy must not outlive this server.
    pub fn behind_caddy(&self, authority: &SelfSignedCertificate) -> Option<Self> {
        let program = fordway_needs::program("caddy")?;
        let (cert, key, behind) = (authority.file(), authority.key(), self.port);
        Some(start("https", |dir, port| {
            let config = format!(
                "{{\nadmin off\nauto_https off\nstorage file_system {dir}/own\n\
                 servers {{\nprotocols h1 h2 h3\n}}\n}}\nhttps://127.0.0.1:{port} {{\nbind 127.0.0.1\ntls {} {}\n\
                 reverse_proxy 127.0.0.1:{behind} {{\n\
                 header_up Destination ^https://[^/]+ http://127.0.0.1:{behind}\nheader_up Host 127.0.0.1:{behind}\n}}\n}}\n",
                cert.display(),
                key.display(),
            );
            std::fs::write(format!("{dir}/config"), config).expect("a configuration");
            let config = format!("{dir}/config");
            let mut command = command(&program, &["run", "--config", &config, "--adapter", "caddyfile"]);
            command.env("HOME", format!("{dir}/own"));
            command
        }))
    }

    /// Starts XRootD with HTTPS and its handler for third-party copies. Returns `None` if XRootD is not installed. The
    /// server uses the certificate of `authority`, which is also the only certificate authority that the server trusts.
    pub fn xrootd(authority: &SelfSignedCertificate) -> Option<Self> {
        let program = fordway_needs::program("xrootd")?;
        Some(start("https", |dir, port| {
            let trusted = authority.trusted();
            let trusted = trusted.display();
            let config = format!(
                "xrd.port any\nxrd.protocol http:{port} libXrdHttp.so\nhttp.exthandler xrdtpc libXrdHttpTPC.so\n\
                 http.listingdeny no\nhttp.httpsmode auto\nxrd.tls {dir}/own/cert.pem {dir}/own/key.pem\n\
                 xrd.tlsca certdir {trusted}\nall.export /\noss.localroot {dir}/files\nall.adminpath {dir}/own\n\
                 all.pidpath {dir}/own\nxrd.network nodnr\n"
            );
            std::fs::write(format!("{dir}/config"), config).expect("a configuration");
            open_to_all(&Path::new(dir).join("config"), 0o644);
            for from in [authority.file(), authority.key()] {
                let to = Path::new(dir).join("own").join(from.file_name().unwrap_or_default());
                std::fs::copy(&from, to).expect("a key");
            }
            let mut words =
                vec!["-c".to_owned(), format!("{dir}/config"), "-n".to_owned(), format!("on{port}")];
            // XRootD refuses to run as root, and must own its key.
            if rustix::process::geteuid().is_root() {
                let owned = Command::new("chown").args(["-R", "nobody", &format!("{dir}/own")]).status();
                assert!(owned.is_ok_and(|status| status.success()), "chown to nobody");
                words.extend(["-R".to_owned(), "nobody".to_owned()]);
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut command = command(&program, &words);
            command.env("X509_CERT_DIR", format!("{trusted}")).current_dir(dir);
            command
        }))
    }

    /// Returns the URL of a path, which must be percent-encoded already.
    pub fn url(&self, path: &str) -> String {
        format!("{}://127.0.0.1:{}/{path}", self.scheme, self.port)
    }

    /// Returns the directory that the server serves.
    pub fn files(&self) -> PathBuf {
        self.dir.path().join("files")
    }
}

/// A self-signed certificate and its key, in a directory with OpenSSL's layout.
#[derive(Debug)]
pub struct SelfSignedCertificate {
    dir: TempDir,
}

impl SelfSignedCertificate {
    /// Creates a certificate for 127.0.0.1. The `openssl` program computes the file name that the OpenSSL library
    /// expects. Panics if this program is missing.
    pub fn new() -> Self {
        SelfSignedCertificate::of("127.0.0.1")
    }

    /// Creates a certificate for a host or an address, as [`SelfSignedCertificate::new`] does for 127.0.0.1.
    pub fn of(host: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).expect("a certificate");
        let write = |name: &str, text: String, mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).expect("a file");
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        };
        std::fs::create_dir(dir.path().join("trusted")).expect("a directory");
        open_to_all(&dir.path().join("trusted"), 0o755);
        write("trusted/cert.pem", made.cert.pem(), 0o644);
        write("key.pem", made.signing_key.serialize_pem(), 0o600);
        let cert = dir.path().join("trusted/cert.pem");
        let hash = Command::new("openssl").args(["x509", "-hash", "-noout", "-in"]).arg(&cert).output();
        let hash = String::from_utf8(hash.expect("openssl").stdout).expect("a number");
        write(&format!("trusted/{}.0", hash.trim()), made.cert.pem(), 0o644);
        open_to_all(dir.path(), 0o755);
        SelfSignedCertificate { dir }
    }

    /// Returns the path of the certificate's PEM file.
    pub fn file(&self) -> PathBuf {
        self.trusted().join("cert.pem")
    }

    /// Returns the path of the private key's PEM file.
    pub fn key(&self) -> PathBuf {
        self.dir.path().join("key.pem")
    }

    /// Returns the directory of trusted certificates. XRootD does not start if this directory contains an unreadable
    /// file.
    fn trusted(&self) -> PathBuf {
        self.dir.path().join("trusted")
    }
}

impl Default for SelfSignedCertificate {
    fn default() -> Self {
        SelfSignedCertificate::new()
    }
}

/// Starts nginx. `listening` contains further parameters of the directive `listen`, `modules` contains directives that
/// load modules, and `settings` contains directives of the only server.
fn nginx(
    scheme: &'static str,
    listening: &str,
    modules: &str,
    settings: &str,
) -> Option<ExternalServerProcess> {
    let program = fordway_needs::program("nginx")?;
    Some(start(scheme, |dir, port| {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {dir}/own/{kind};\n"))
            .concat();
        let config = format!(
            "{modules}daemon off; master_process off; pid {dir}/pid; error_log stderr; events {{}}\n\
             http {{ access_log off;\n{temporary} server {{ listen 127.0.0.1:{port}{listening}; root {dir}/files;\n\
             dav_methods PUT DELETE MKCOL COPY MOVE; client_max_body_size 0; {settings} }} }}"
        );
        std::fs::write(format!("{dir}/config"), config).expect("a configuration");
        command(&program, &["-c", &format!("{dir}/config"), "-e", "stderr"])
    }))
}

fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Starts the command that `prepare` returns for a port and a directory, which contains `files` and `own`. Tries
/// another port if another program has taken the port in the meantime.
fn start(scheme: &'static str, prepare: impl Fn(&str, u16) -> Command) -> ExternalServerProcess {
    for _ in 0..5 {
        let dir = tempfile::tempdir().expect("a directory");
        open_to_all(dir.path(), 0o755);
        for name in ["files", "own"] {
            std::fs::create_dir(dir.path().join(name)).expect("a directory");
            open_to_all(&dir.path().join(name), 0o777);
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port of 127.0.0.1");
        let port = listener.local_addr().expect("the port that was bound").port();
        drop(listener);
        let mut command = prepare(dir.path().to_str().expect("a name in UTF-8"), port);
        let child = command.spawn().expect("a program that starts");
        let mut server = ExternalServerProcess { child, dir, port, scheme };
        if server.is_up() {
            return server;
        }
    }
    panic!("no server would start");
}

/// Sets the mode of `path`, so that servers that run as other users can access it.
fn open_to_all(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
}

impl ExternalServerProcess {
    /// Waits until the server accepts connections. Returns `false` if the server's process has ended.
    fn is_up(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return false;
            }
            assert!(Instant::now() < deadline, "the server does not take connections");
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}
