//! Sockets that systemd hands to the process when it starts (sd_listen_fds(3)).

use std::os::fd::OwnedFd;
use std::{env, io, process};

use listenfd::ListenFd;
use socket2::{Domain, SockRef, Type};
use tokio::net::{TcpListener, UnixListener};

/// More sockets than any service has.
const MAX_SOCKETS: usize = 1024;

/// The settings that a .socket unit must have. This is the advice for every mistake.
const REMEDY: &str = "the .socket unit needs ListenStream= and Accept=no";

/// All sockets that systemd has handed over.
pub(crate) fn listeners<L>() -> io::Result<Vec<L>>
where
    L: From<TcpListener> + From<UnixListener>,
{
    let none = |why: String| {
        io::Error::new(io::ErrorKind::NotFound, format!("no sockets are inherited: {why}"))
    };
    let Some(count) = env::var_os("LISTEN_FDS") else {
        return Err(none(
            "LISTEN_FDS is not set; is the service started by a .socket unit?".to_owned(),
        ));
    };
    let number = count.to_str().and_then(|count| count.parse().ok());
    if !number.is_some_and(|number| (1..=MAX_SOCKETS).contains(&number)) {
        let count = count.display();
        return Err(none(format!(
            "LISTEN_FDS is '{count}', but must be a number from 1 to {MAX_SOCKETS}"
        )));
    }
    let pid = env::var_os("LISTEN_PID").filter(|pid| !pid.is_empty());
    if let Some(pid) =
        pid.filter(|pid| pid.to_str().and_then(|pid| pid.parse().ok()) != Some(process::id()))
    {
        return Err(none(format!(
            "LISTEN_PID is {}, but this process is {}; a script that starts the agent must use \
             exec",
            pid.display(),
            process::id()
        )));
    }
    let mut sockets = ListenFd::from_env();
    let count = sockets.len();
    (0..count)
        .map(|index| {
            listener(&mut sockets, index).map_err(|error| {
                let what = format!("inherited socket {} of {count} {error}; {REMEDY}", index + 1);
                io::Error::new(io::ErrorKind::InvalidInput, what)
            })
        })
        .collect()
}

/// The socket at this index, or what is wrong with it.
fn listener<L>(sockets: &mut ListenFd, index: usize) -> Result<L, String>
where
    L: From<TcpListener> + From<UnixListener>,
{
    let failed = |error: io::Error| format!("cannot be used: {error}");
    let listens = |socket: SockRef<'_>| match socket.is_listener() {
        Ok(true) => Ok(()),
        Ok(false) => Err("does not listen".to_owned()),
        Err(error) => Err(failed(error)),
    };
    if let Ok(Some(listener)) = sockets.take_tcp_listener(index) {
        listens(SockRef::from(&listener))?;
        listener.set_nonblocking(true).map_err(failed)?;
        return TcpListener::from_std(listener).map(L::from).map_err(failed);
    }
    if let Ok(Some(listener)) = sockets.take_unix_listener(index) {
        listens(SockRef::from(&listener))?;
        listener.set_nonblocking(true).map_err(failed)?;
        return UnixListener::from_std(listener).map(L::from).map_err(failed);
    }
    let others = [
        (Domain::IPV4, Type::DGRAM, "is a UDP socket"),
        (Domain::UNIX, Type::DGRAM, "is a Unix datagram socket"),
        (Domain::UNIX, Type::SEQPACKET, "is a Unix seqpacket socket"),
    ];
    let other = others.into_iter().find(|(domain, kind, _)| {
        // `listenfd` also accepts IPv6 here.
        let taken = sockets.take_custom::<OwnedFd>(index, (*domain).into(), (*kind).into(), "");
        matches!(taken, Ok(Some(_)))
    });
    Err(other.map_or("is not a TCP or Unix socket", |(.., what)| what).to_owned())
}
