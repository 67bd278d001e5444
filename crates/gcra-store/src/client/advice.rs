//! [`advice`]: what an operator can do about a [`Fault`].

use crate::client::fault::Fault;
use crate::config::{Config, Password, Place};

/// The permissions that a user of the store needs, in the words of `ACL SETUSER`.
pub const PERMISSIONS: &str = "resetkeys ~{gcra:* resetchannels -@all +eval +evalsha +get +set \
                               +strlen +time +role +wait +asking +cluster|slots +select";

/// Advice about a fault of a store with this configuration, as the end of a sentence; empty if
/// there is no advice.
pub(crate) fn advice(fault: &Fault, config: &Config) -> String {
    match fault {
        Fault::NotPermitted(_) => format!("; a user needs: {PERMISSIONS}"),
        Fault::Login(_) => login(&config.password, "password_file or --store-password-file"),
        Fault::Closed => match (config.url.tls, &config.certificate) {
            (false, _) => "; if this port has TLS, write rediss:// in the address",
            (true, None) => {
                "; if the server wants a certificate of its clients, name one with certificate \
                 and certificate_key in [store] of a configuration file"
            }
            (true, Some(_)) => "; does the server trust the certificate of this client?",
        }
        .to_owned(),
        Fault::Foreign(_) => "; is this the address of a Valkey or Redis?".to_owned(),
        Fault::Connection(why) if why.contains("corrupt message") => no_tls(),
        Fault::NoTls => no_tls(),
        Fault::Connection(why) if why.contains("UnknownIssuer") => match config.authorities {
            None => "; name the file of the authority that signed its certificate with ca, or \
                     --store-ca"
                .to_owned(),
            Some(_) => "; the file of ca or --store-ca is not of the authority that signed its \
                        certificate"
                .to_owned(),
        },
        Fault::Connection(why) if why.contains("NotValidForName") => {
            "; write a name in the address for which its certificate is valid".to_owned()
        }
        Fault::Replica => "; name its primary, or the sentinels".to_owned(),
        Fault::Sentinel(name) => {
            let scheme = if config.url.tls { "rediss" } else { "redis" };
            let address = match &config.url.place {
                Place::Single(address) => address.to_string(),
                Place::Sentinel { .. } | Place::Cluster { .. } => "HOST:PORT".to_owned(),
            };
            let name = name.as_deref().unwrap_or("NAME-OF-THE-PRIMARY");
            format!("; write {scheme}+sentinel://{address}/{name}")
        }
        Fault::OutOfMemory => "; raise maxmemory".to_owned(),
        Fault::Slow { .. } => "; let requests wait longer (--store-wait, or wait in [store]), or \
                               use a store that is nearer"
            .to_owned(),
        Fault::Late => {
            format!("; agents wait for {:?}, and then do without the store", config.timeout)
        }
        Fault::NotFollowing { .. } => "; mend that replica, or stop it for good: its primary is \
                                       used again when it follows, or is given up"
            .to_owned(),
        Fault::NoMajority(said) => said
            .iter()
            .filter_map(|(address, said)| Some((address, said.as_ref().err()?)))
            // That is about the servers.
            .filter(|(_, fault)| **fault != Fault::Late)
            .map(|(address, fault)| Fault::Of(address.clone(), Box::new(fault.clone())))
            .map(|fault| advice(&fault, config))
            .find(|advice| !advice.is_empty())
            .unwrap_or_default(),
        Fault::FewReplicas { .. } => "; start another one, or set least_replicas in [store] of a \
                                      configuration file"
            .to_owned(),
        Fault::Other(said) if said.starts_with("MOVED") => {
            "; it is a node of a cluster; use redis+cluster://".to_owned()
        }
        Fault::Other(said) if said.contains("max number of clients") => {
            "; raise maxclients of the server, or find out who else connects to it".to_owned()
        }
        Fault::Other(said) if said.contains("unknown command") => {
            "; limits need EVAL and EVALSHA, which this server does not have".to_owned()
        }
        Fault::Of(_, fault) => match **fault {
            Fault::Login(_) if config.url.has_sentinels() => {
                login(&config.sentinel_password, "sentinel_password_file in [store]")
            }
            Fault::Other(ref said)
                if config.url.has_sentinels() && said.contains("unknown command") =>
            {
                "; it is not a sentinel; name the sentinels, whose port is mostly 26379, or write \
                 redis:// if it is the server to use"
                    .to_owned()
            }
            _ => advice(fault, config),
        },
        _ => String::new(),
    }
}

fn no_tls() -> String {
    "; if this port has no TLS, write redis:// in the address".to_owned()
}

/// Where a password comes from that is wrong, or how to name one.
fn login(password: &Password, setting: &str) -> String {
    match password {
        Password::None => format!("; name the password with {setting}"),
        Password::File(path) => format!("; the password is from the file {}", path.display()),
        Password::Variable(name) => format!("; the password is from the variable {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Certificate, Url};

    #[test]
    fn a_late_answer_is_measured_by_the_time_that_agents_wait() {
        let mut config = Config::new(Url::parse("redis://a").unwrap());
        config.timeout = core::time::Duration::from_millis(70);
        let advice = advice(&Fault::Late, &config);
        assert_eq!(advice, "; agents wait for 70ms, and then do without the store");
    }

    #[test]
    fn a_connection_that_is_closed_or_silent_may_have_tls_on_one_side_only() {
        let config = |url: &str| Config::new(Url::parse(url).unwrap());
        let plain = config("redis://a");
        assert!(advice(&Fault::Closed, &plain).ends_with("write rediss:// in the address"));
        let mut tls = config("rediss://a");
        assert!(advice(&Fault::NoTls, &tls).ends_with("write redis:// in the address"));
        let plain = Fault::Connection("received corrupt message of type X".to_owned());
        assert!(advice(&plain, &tls).ends_with("write redis:// in the address"));
        assert!(advice(&Fault::Closed, &tls).contains("name one with certificate and"));
        let unknown = Fault::Connection("invalid peer certificate: UnknownIssuer".to_owned());
        assert!(advice(&unknown, &tls).ends_with(" with ca, or --store-ca"));
        tls.authorities = Some("ca.pem".into());
        assert!(advice(&unknown, &tls).contains("is not of the authority that signed"));
        tls.certificate = Some(Certificate { chain: "c".into(), key: "k".into() });
        assert!(advice(&Fault::Closed, &tls).ends_with("the certificate of this client?"));
    }

    #[test]
    fn a_password_that_is_wrong_has_its_source() {
        let mut config = Config::new(Url::parse("redis+sentinel://a/b").unwrap());
        let of = Fault::Of(
            crate::config::Address::Tcp("a".into(), 26_379),
            Box::new(Fault::Login("NOAUTH no".to_owned())),
        );
        let own = Fault::Login("WRONGPASS no".to_owned());
        let missing = "; name the password with password_file or --store-password-file";
        assert_eq!(advice(&own, &config), missing);
        let missing = "; name the password with sentinel_password_file in [store]";
        assert_eq!(advice(&of, &config), missing);
        let a = crate::config::Address::Tcp("a".into(), 26_379);
        let silent = (a.clone(), Err(Fault::Late));
        let none = Fault::NoMajority(vec![(a.clone(), Ok(a.clone())), silent.clone()]);
        assert_eq!(super::advice(&none, &config), "");
        let login = (a, Err(Fault::Login("NOAUTH no".to_owned())));
        assert_eq!(super::advice(&Fault::NoMajority(vec![silent, login]), &config), missing);
        config.password = Password::File("/p".into());
        config.sentinel_password = Password::Variable("P".to_owned());
        assert_eq!(advice(&own, &config), "; the password is from the file /p");
        assert_eq!(advice(&of, &config), "; the password is from the variable P");
    }
}
