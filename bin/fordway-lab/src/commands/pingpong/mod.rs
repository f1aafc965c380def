//! `pingpong`: one end of a ping-pong, or of the tunnel between.

pub(super) mod caller;
mod ping;
mod pong;

use std::fmt;

use fordway_command::{Context, Exit};
use fordway_load::pingpong::{Player, Server};
use fordway_netlab::tunnel::Tunnel;
use fordway_store::Result;
use serde::Serialize;

use crate::args::{EndArgs, PingpongAction, PingpongArgs, TunnelArgs};
use fordway_command::program::stop_when_asked;

pub(super) fn run(args: &PingpongArgs, context: &Context) -> Result<Exit> {
    match &args.action {
        PingpongAction::Pong(args) => serve(&args.end, pong::Memory::new(args)?, context),
        PingpongAction::Ping(args) => serve(&args.end, ping::Asker::new(args)?, context),
        PingpongAction::Tunnel(args) => tunnel(args, context),
    }
}

/// Answers until a signal, or the end of the input where that was asked for.
fn serve(args: &EndArgs, player: impl Player, context: &Context) -> Result<Exit> {
    let server = Server::bind(&args.listen)?;
    let ready = Ready { endpoint: format!("http://{}", server.address()) };
    server.start(player, usize::from(args.workers))?;
    context.output.record(&ready)?;
    context.output.flush()?;
    let (stop, stopped) = std::sync::mpsc::channel();
    // A second reason to stop finds nobody who waits.
    let stop = move || _ = stop.send(());
    stop_when_asked(stop, &context.interrupt, args.until_eof)?;
    // It ends also where nobody is left who could send.
    let _ = stopped.recv();
    Ok(Exit::Ok)
}

fn tunnel(args: &TunnelArgs, context: &Context) -> Result<Exit> {
    let tunnel = Tunnel::new(&args.device, &args.listen, &args.peer)?;
    std::thread::spawn(move || {
        if let Err(error) = tunnel.run() {
            tracing::error!(%error, "the tunnel has ended");
        }
    });
    let (stop, stopped) = std::sync::mpsc::channel();
    stop_when_asked(move || _ = stop.send(()), &context.interrupt, false)?;
    let _ = stopped.recv();
    Ok(Exit::Ok)
}

/// What is printed when connections are taken.
#[derive(Serialize)]
struct Ready {
    endpoint: String,
}

impl fmt::Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fordway: answering at {}", self.endpoint)
    }
}
