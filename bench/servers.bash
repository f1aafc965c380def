# The benchmarks of servers source this file after scratch.bash. Starts a server on loopback, and stops the server when
# the script exits.

server=
stop_server() {
    if [[ $server ]]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    server=
}
trap 'stop_server; clean_up' EXIT

need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || {
            echo "$program is missing; run: make setup" >&2
            exit 1
        }
    done
}

# Prints a port that is free now, because these servers cannot choose a port.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# wait_for URL LOG: waits until the server responds; if it does not respond within 10 s, prints the end of LOG and
# exits.
wait_for() {
    local _
    for _ in {1..100}; do
        curl --insecure --silent --fail --output /dev/null "$1" && return
        sleep 0.1
    done
    echo "no response from $1:" >&2
    tail "$2" >&2
    exit 1
}

# start_nginx DIR: starts one process that serves DIR; sets server (its pid) and url.
start_nginx() {
    local dir=$1 port kind
    port=$(free_port)
    {
        echo "worker_processes 1; daemon off; master_process off; pid $scratch/pid; error_log stderr;"
        echo "events { worker_connections 1024; }"
        echo "http { access_log off; sendfile on; keepalive_requests 1000000000; open_file_cache max=100;"
        for kind in client_body proxy fastcgi uwsgi scgi; do echo "${kind}_temp_path $scratch/$kind;"; done
        echo "server { listen 127.0.0.1:$port; root $dir; } }"
    } >"$scratch/nginx.conf"
    PATH=$PATH:/usr/sbin nginx -c "$scratch/nginx.conf" -p "$scratch" 2>"$scratch/nginx.log" &
    server=$! url=http://127.0.0.1:$port
    chmod -R a+rX "$scratch"
    wait_for "$url/" "$scratch/nginx.log"
}

# start_caddy DIR FILE: serves DIR, which contains FILE, over HTTP/1.1, 2 and 3 with its own certificate; sets server, url
# and ca_bundle (the trusted certificate).
start_caddy() {
    local dir=$1 port
    port=$(free_port)
    cat >"$scratch/Caddyfile" <<EOF
{
    admin off
    auto_https disable_redirects
    skip_install_trust
    storage file_system $scratch/caddy
    servers {
        protocols h1 h2 h3
    }
}
https://localhost:$port {
    bind 127.0.0.1
    tls internal
    root * $dir
    file_server
}
EOF
    XDG_DATA_HOME=$scratch XDG_CONFIG_HOME=$scratch \
        caddy run --config "$scratch/Caddyfile" --adapter caddyfile 2>"$scratch/caddy.log" &
    server=$! url=https://localhost:$port ca_bundle=$scratch/caddy/pki/authorities/local/root.crt
    wait_for "$url/$2" "$scratch/caddy.log"
}

# make_certificate: creates a certificate for the loopback address; sets ca_bundle (the trusted certificate), which has
# key.pem next to it.
make_certificate() {
    ca_bundle=$scratch/cert.pem
    openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE \
        -keyout "$scratch/key.pem" -out "$ca_bundle" 2>"$scratch/openssl.log"
}

# start_gateway DIR OPTION...: starts our gateway on DIR, with the durability in the variable `durability` (default:
# none); sets server and url.
start_gateway() {
    local _
    : >"$scratch/ready"
    "$fordway" serve "$@" --listen 127.0.0.1:0 --etag fast --durability "${durability:-none}" >"$scratch/ready" 2>"$scratch/gateway.log" &
    server=$!
    for _ in {1..100}; do [[ -s $scratch/ready ]] && break; sleep 0.1; done
    url=$(head -n 1 "$scratch/ready")
    url=${url##* at }
}
