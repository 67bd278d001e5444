//! The service manager, systemd or another that speaks its protocol: what it learns about the
//! agent (sd_notify(3)).
//!
//! Not by the crate `sd-notify`, which knows no abstract sockets and would wait for a service
//! manager that does not read: the thread that sends also answers requests.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, io, process};

use rustix::time::{ClockId, clock_gettime};

/// The service manager, if there is one that waits to be notified.
#[derive(Debug, Default)]
pub(crate) struct ServiceManager {
    notify: Option<Notify>,
    watchdog: Option<Duration>,
}

#[derive(Debug)]
struct Notify {
    socket: UnixDatagram,
    address: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last change, if it is still to be sent.
    unsent: Option<String>,
    /// Nothing that follows is a change.
    is_stopping: bool,
}

impl ServiceManager {
    /// The one that `$NOTIFY_SOCKET` names. Without it, all that follows does nothing.
    pub(crate) fn from_environment() -> Self {
        let notify =
            env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()).and_then(|name| {
                Notify::to(&name)
                .inspect_err(|error| {
                    log::warn!(
                        "NOTIFY_SOCKET is {}, which cannot be used: {error}; the service manager \
                         will not learn that the agent is ready",
                        name.display()
                    );
                })
                .ok()
            });
        let watchdog = notify.as_ref().and_then(|_| {
            watchdog(
                env::var("WATCHDOG_USEC").ok().as_deref(),
                env::var("WATCHDOG_PID").ok().as_deref(),
            )
        });
        Self { notify, watchdog }
    }

    /// After this time without a [`beat`](Self::beat) the service manager kills the agent; `None`
    /// if it does not.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }

    /// The agent serves. `status` is a line for `systemctl status`, here and below.
    pub(crate) fn ready(&self, status: &str) {
        self.change("READY=1", status);
    }

    /// The agent reads its configuration. [`ready`](Self::ready) ends that, even if the
    /// configuration has mistakes.
    pub(crate) fn reloading(&self, status: &str) {
        let now = clock_gettime(ClockId::Monotonic);
        // systemd compares it with the time at which it asked (Type=notify-reload).
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1_000;
        self.change(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"), status);
    }

    /// The agent has begun to leave, which is the last change.
    pub(crate) fn stopping(&self) {
        if let Some(notify) = &self.notify {
            notify.change("STOPPING=1\nSTATUS=stopping\n".to_owned(), true);
        }
    }

    /// Resets the watchdog, if there is one.
    pub(crate) fn beat(&self) {
        if let Some(notify) = &self.notify
            && self.watchdog.is_some()
        {
            // The next one comes before the time is over.
            let _ = notify.send("WATCHDOG=1\n");
        }
    }

    /// Sends again what could not be sent.
    pub(crate) fn retry(&self) {
        if let Some(notify) = &self.notify {
            notify.flush(&mut notify.state());
        }
    }

    fn change(&self, state: &str, status: &str) {
        if let Some(notify) = &self.notify {
            notify.change(format!("{state}\nSTATUS={status}\n"), false);
        }
    }
}

impl Notify {
    fn to(name: &OsStr) -> io::Result<Self> {
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
            [b'/', ..] => SocketAddr::from_pathname(name)?,
            _ => return Err(io::Error::other("it begins with neither / nor @")),
        };
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, address, state: Mutex::default() })
    }

    fn send(&self, message: &str) -> io::Result<()> {
        self.socket.send_to_addr(message.as_bytes(), &self.address).map(drop)
    }

    fn change(&self, message: String, is_stopping: bool) {
        let mut state = self.state();
        if !state.is_stopping {
            *state = State { unsent: Some(message), is_stopping };
            self.flush(&mut state);
        }
    }

    fn flush(&self, state: &mut State) {
        match state.unsent.as_ref().map(|message| self.send(message)) {
            // The service manager has not read what was sent before.
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => return,
            Some(Err(error)) => log::warn!("could not notify the service manager: {error}"),
            Some(Ok(())) | None => {}
        }
        state.unsent = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time of the watchdog: a number of microseconds, for the process with this id.
fn watchdog(micros: Option<&str>, pid: Option<&str>) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(process::id())) {
        return None;
    }
    micros?.parse().ok().filter(|micros| *micros > 0).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_is_a_time_for_this_process() {
        let (this, other) = (process::id().to_string(), (process::id() + 1).to_string());
        let of =
            |micros, pid: Option<&str>| watchdog(Some(micros), pid).map(|time| time.as_micros());
        assert_eq!(of("30000000", Some(&this)), Some(30_000_000));
        assert_eq!(of("1", None), Some(1));
        assert_eq!(of("30000000", Some(&other)), None);
        for wrong in ["", "0", "-1", "30s", "99999999999999999999"] {
            assert_eq!(of(wrong, None), None, "{wrong}");
        }
        assert_eq!(watchdog(None, None), None);
    }

    #[test]
    fn a_change_that_found_no_space_is_sent_later() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        systemd.set_nonblocking(true).unwrap();
        let notify = Notify::to(path.as_os_str()).unwrap();
        let manager =
            ServiceManager { notify: Some(notify), watchdog: Some(Duration::from_secs(1)) };
        let full = || {
            // The kernel's bound (net.unix.max_dgram_qlen) is below this.
            (0..100_000).any(|_| manager.notify.as_ref().unwrap().send("x").is_err())
        };
        assert!(full());
        manager.reloading("a");
        manager.ready("b");
        manager.beat();
        let mut message = [0; 4096];
        let mut received = Vec::new();
        let mut receive = || {
            while let Ok(length) = systemd.recv(&mut message) {
                received.push(String::from_utf8_lossy(&message[..length]).into_owned());
            }
            received.retain(|message| message != "x");
            std::mem::take(&mut received)
        };
        assert_eq!(receive(), [""; 0]);
        manager.retry();
        assert_eq!(receive(), ["READY=1\nSTATUS=b\n"]);
        manager.stopping();
        manager.ready("c");
        manager.reloading("d");
        assert_eq!(receive(), ["STOPPING=1\nSTATUS=stopping\n"], "that is the last change");
    }
}
