//! The networks of a set-up for programs of the user's own: no ping, no pong.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::time::Duration;

use fordway_store::{Error, ErrorKind, Result};

use super::running::{Programs, Site, check_wire};
use super::step::Daemon;
use super::{Ground, Part, Running, Setup, Side, Wire};
use crate::{Lab, Namespace};

/// How long the first connection may take: overlays learn their ways from the first packets.
const REACHED_WITHIN: Duration = Duration::from_secs(15);
/// Where nobody listens; connecting a datagram socket sends nothing.
const DISCARD: u16 = 9;

/// Where programs of one side run, and how the other side's reach them.
#[derive(Clone, Debug)]
pub struct End {
    /// The network.
    pub network: Namespace,
    /// Its address on the way to the other end.
    pub address: IpAddr,
}

/// A set-up whose networks are up, between two ends that reach each other. All of it is gone when this is
/// dropped, and when this process ends, however it does.
#[derive(Debug)]
pub struct Ends {
    /// Where ping would be.
    pub near: End,
    /// Where pong would be.
    pub far: End,
    _daemons: Vec<(Side, Daemon)>,
    _lab: Option<Lab>,
}

impl Ends {
    /// Lays the wire and takes the steps. `fordway` is the program that steps may start.
    ///
    /// Errors: `InvalidArgument` for a set-up that is not networks alone; `NotImplemented` where a program or a
    /// right is missing, or where addresses are translated, so that only one end reaches the other.
    pub fn lay(setup: &Setup, wire: &Wire, fordway: &Path) -> Result<Self> {
        check(setup)?;
        Running::check_programs(setup)?;
        check_wire(setup, wire)?;
        let site = Site::namespaces(setup, wire, &Programs::none(fordway), wire.lay()?)?;
        let network_of = |part: &Part| {
            let found = site.network_of(part).cloned();
            found.ok_or_else(|| Error::new(ErrorKind::Internal, "a part of a set-up without its network"))
        };
        let (near, far) = (network_of(&setup.ping)?, network_of(&setup.pong)?);
        let far = End { address: parse(&site.words.fill(&setup.pong.address)?)?, network: far };
        let near = End { address: near.run(|| own_address(far.address))??, network: near };
        for (from, to) in [(&near, &far), (&far, &near)] {
            reach(from, to)?;
        }
        Ok(Ends { near, far, _daemons: site.daemons, _lab: site.lab })
    }
}

fn check(setup: &Setup) -> Result<()> {
    let is_special = |part: &Part| part.container || part.command.is_some();
    let why = match setup.on {
        Ground::Machine => "it has no networks of its own",
        Ground::Namespaces if is_special(&setup.ping) || is_special(&setup.pong) => {
            "it says itself how its programs are started, as in containers that see no files of this machine"
        }
        Ground::Namespaces => return Ok(()),
    };
    let detail = format!("the set-up {} cannot hold other programs: {why}", setup.name);
    Err(Error::new(ErrorKind::InvalidArgument, detail))
}

fn parse(address: &str) -> Result<IpAddr> {
    address.parse().map_err(|error| {
        let detail = format!("{address:?} is no address, and names are not looked up in a set-up");
        Error::new(ErrorKind::InvalidArgument, detail).caused_by(error)
    })
}

/// The address that packets to `other` leave with.
fn own_address(other: IpAddr) -> Result<IpAddr> {
    let found = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect((other, DISCARD))?;
        socket.local_addr()
    });
    found.map(|address| address.ip()).map_err(|error| {
        Error::new(ErrorKind::NotImplemented, format!("there is no way to {other}")).caused_by(error)
    })
}

/// Makes one connection. Behind translation an end does not have the address that it is reached at, or none.
fn reach(from: &End, to: &End) -> Result<()> {
    let failed = |error: std::io::Error| {
        let detail = format!(
            "the two ends do not reach each other at addresses of their own ({} to {}), as is the case \
             behind address translation",
            from.address, to.address
        );
        Error::new(ErrorKind::NotImplemented, detail).caused_by(error)
    };
    let listener = to.network.run(|| TcpListener::bind((to.address, 0)))?.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    let address = SocketAddr::new(to.address, port);
    let connected = from.network.run(|| TcpStream::connect_timeout(&address, REACHED_WITHIN))?;
    connected.map(drop).map_err(failed)
}
