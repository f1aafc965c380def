//! Work done as another user for threads that gave up the right to become one.

use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::io::{Errno, Result};

use crate::forks::Process;
use crate::identity::{Role, may_act_as_others};
use crate::socket::Peer;

type Work = Box<dyn FnOnce() + Send>;

/// A thread that may act as others when the one that needs it may not any more.
#[derive(Debug)]
pub struct Helper {
    work: Mutex<Sender<Work>>,
    started_by: Process,
}

static HELPER: OnceLock<Option<Helper>> = OnceLock::new();

impl Helper {
    /// Starts the process's helper, unless there is one; to be called by a thread that may act as others.
    pub fn start() {
        HELPER.get_or_init(|| {
            let (sender, receiver) = channel::<Work>();
            let serve = move || receiver.into_iter().for_each(|work| work());
            let started = std::thread::Builder::new().name("fordway-helper".to_owned()).spawn(serve);
            started.is_ok().then(|| Helper { work: Mutex::new(sender), started_by: Process::current() })
        });
    }

    /// Errors: `PERM` if there is none: a child process has none of its parent's threads.
    fn current() -> Result<&'static Helper> {
        let helper = HELPER.get().and_then(Option::as_ref).ok_or(Errno::PERM)?;
        if helper.started_by.is_current() { Ok(helper) } else { Err(Errno::PERM) }
    }
}

/// Does `work` as `peer`, with no capability: on the calling thread where that may act as others, else on
/// the process's [`Helper`]. Errors: `PERM` where neither may.
pub fn act_for<T: Send + 'static>(peer: &Peer, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    if may_act_as_others() {
        return Role::new(peer)?.play(work);
    }
    let (answer, answered): (SyncSender<Result<T>>, _) = sync_channel(1);
    let peer = peer.clone();
    let errand: Work = Box::new(move || {
        // Whoever asked may have ended; one that panics fails that call alone.
        let play = std::panic::AssertUnwindSafe(|| Role::new(&peer).and_then(|role| role.play(work)));
        let _ = answer.send(std::panic::catch_unwind(play).unwrap_or(Err(Errno::IO)));
    });
    let sent = Helper::current()?.work.lock().unwrap_or_else(PoisonError::into_inner).send(errand);
    sent.map_err(|_| Errno::PERM)?;
    answered.recv().unwrap_or(Err(Errno::IO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{act_as, file_user};

    #[test]
    fn a_thread_that_gave_up_its_rights_is_helped() {
        let user = |uid| Peer { uid, gid: uid, groups: vec![] };
        if !fordway_needs::root("act as others") {
            assert_eq!(act_for(&user(54_321), file_user), Err(Errno::PERM));
            return;
        }
        Helper::start();
        let asked = std::thread::spawn(move || {
            act_as(&user(54_321)).unwrap();
            (act_for(&user(54_322), file_user), file_user())
        });
        assert_eq!(asked.join().unwrap(), (Ok(54_322), 54_321));
        assert_eq!(act_for(&user(54_322), file_user), Ok(54_322));
        let nested =
            Role::new(&user(54_321)).unwrap().play(|| (act_for(&user(54_322), file_user), file_user()));
        assert_eq!(nested, Ok((Ok(54_322), 54_321)));
        assert_eq!(file_user(), 0);
    }
}
