//! The settings of the store.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use gcra_store::{Certificate, Config, Password, Url};

use crate::file::document::parse;
use crate::file::tests::sentences;
use crate::policies::Policies;
use crate::store::StoreSettings;

const SHARED: &str = "[policy.api]\nlimits = \"1/s\"\nshared = true\n";

fn read(path: &Path, store: &str) -> Result<Policies, Vec<String>> {
    let parsed = parse(path, &format!("[store]\n{store}\n{SHARED}"));
    parsed.map_err(|mistakes| sentences(&mistakes))
}

fn settings(store: &str) -> StoreSettings {
    read(Path::new("/etc/gcra/x.toml"), store).unwrap().store.unwrap()
}

#[test]
fn the_least_that_can_be_said_about_a_store_is_its_url() {
    let store = settings("url = \"redis://store.example\"");
    let expected = StoreSettings {
        base: Config::new(Url::parse("redis://store.example").unwrap()),
        url_text: "redis://store.example".to_owned(),
        wait: Duration::from_millis(20),
        salt: Vec::new(),
    };
    assert_eq!(store, expected);
    let config = store.config();
    assert_eq!((config.timeout, config.durable), (Duration::from_millis(50), true));
    assert_eq!(config.connect_timeout, Duration::from_millis(500));
    let patient = settings("url = \"redis://store.example\"\nwait = \"2s\"").config();
    assert_eq!(patient.connect_timeout, Duration::from_secs(2));
    // A server that another one may replace has a replica.
    for url in ["redis+sentinel://a,b/main", "redis+cluster://a,b"] {
        assert_eq!(settings(&format!("url = \"{url}\"")).base.least_replicas, 1);
        let none = format!("url = \"{url}\"\nleast_replicas = 0");
        assert_eq!(settings(&none).base.least_replicas, 0);
    }
}

#[test]
fn all_settings_reach_the_client_of_the_store() {
    let directory = tempfile::tempdir().unwrap();
    let salt = directory.path().join("salt");
    fs::write(&salt, "0123456789abcdef\r\n").unwrap();
    let text = "url = \"rediss://gcra@store.example:6380/3\"\npassword_file = \"secret\"\n\
                ca = \"/etc/ca.pem\"\ncertificate = \"me.pem\"\n\
                certificate_key = \"me.key\"\nwait = \"70ms\"\nstrict = true\n\
                least_replicas = 2\nsalt_file = \"salt\"";
    let policies = read(&directory.path().join("x.toml"), text).unwrap();
    let store = policies.store.unwrap();
    let config = store.config();
    assert_eq!(config.url, Url::parse("rediss://gcra@store.example:6380/3").unwrap());
    // As with lists, the name of a file is relative to the configuration.
    assert_eq!(config.password, Password::File(directory.path().join("secret")));
    assert_eq!(config.authorities.as_deref(), Some(Path::new("/etc/ca.pem")));
    let [chain, key] = ["me.pem", "me.key"].map(|name| directory.path().join(name));
    assert_eq!(config.certificate, Some(Certificate { chain, key }));
    assert_eq!((config.strict, config.least_replicas), (true, 2));
    assert_eq!((store.wait, config.timeout), (Duration::from_millis(70), store.wait));
    assert_eq!(store.salt, b"0123456789abcdef");
    assert!(policies.files.iter().any(|(file, _)| *file == salt), "it is watched");
    assert!(!format!("{store:?}").contains("48"), "the salt is in no log: {store:?}");
    assert_eq!(
        store.in_words(),
        "rediss://gcra@store.example:6380/3, for which a request waits at most 70ms, with at \
         least 2 replicas, strict"
    );

    let sentinels = settings(
        "url = \"redis+sentinel://a,b/main\"\npassword_file = \"/p\"\n\
         sentinel_password_file = \"/s\"",
    );
    let config = sentinels.config();
    assert_eq!(config.password, Password::File("/p".into()));
    assert_eq!(config.sentinel_password, Password::File("/s".into()));

    let variable = settings("url = \"redis://a\"\npassword_env = \"GCRA_PASSWORD\"");
    assert_eq!(variable.config().password, Password::Variable("GCRA_PASSWORD".to_owned()));

    // A reload must notice another salt.
    fs::write(&salt, "0123456789abcdeF").unwrap();
    let other = read(&directory.path().join("x.toml"), text).unwrap();
    assert_ne!(policies.text_digest, other.text_digest);
    assert_ne!(Some(store), other.store);
}

#[test]
fn a_wrong_salt_is_one_clear_sentence() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("short"), "0123456789abcde\n").unwrap();
    fs::write(directory.path().join("long"), "x".repeat(5_000)).unwrap();
    let file = directory.path().join("x.toml");
    for (salt, sentence) in [
        ("none", "cannot read the salt file "),
        (".", "cannot read the salt file "),
        ("short", "the salt file "),
        ("long", "the salt file "),
    ] {
        let store = format!("url = \"redis://a\"\nsalt_file = \"{salt}\"");
        let of_names = format!("salt_file = \"{salt}\"\n[policy.api]\nlimits = \"1/s\"\n");
        for (mistakes, line) in
            [(read(&file, &store), 3), (parse(&file, &of_names).map_err(|it| sentences(&it)), 1)]
        {
            let (mistakes, expected) =
                (mistakes.unwrap_err(), format!("{}:{line}: {sentence}", file.display()));
            assert!(mistakes.len() == 1 && mistakes[0].starts_with(&expected), "{mistakes:#?}");
        }
    }
}

#[test]
fn the_salt_of_names_is_watched_and_in_no_log() {
    let directory = tempfile::tempdir().unwrap();
    let (file, salt) = (directory.path().join("x.toml"), directory.path().join("salt"));
    let text = "salt_file = \"salt\"\n[policy.api]\nlimits = \"1/s\"\nobserve = \"1/h\"\n";
    let read = |bytes: &str, mode| {
        fs::write(&salt, bytes).unwrap();
        fs::set_permissions(&salt, Permissions::from_mode(mode)).unwrap();
        parse(&file, text).unwrap()
    };
    let policies = read("0123456789abcdef\n", 0o640);
    assert_eq!(policies.warnings, []);
    assert!(policies.files.iter().any(|(file, _)| *file == salt), "it is watched");
    let shown = format!("{:?}", policies.list);
    assert!(shown.contains("NameSalt") && !shown.contains("NameSalt("), "{shown}");
    let salts: Vec<_> = policies.list.iter().map(|policy| policy.name_salt).collect();
    assert!(salts.len() == 2 && salts.iter().all(|it| it.is_some() && *it == salts[0]));

    let other = read("0123456789abcdeF", 0o644);
    assert_ne!(policies.text_digest, other.text_digest, "a reload must notice it");
    assert_eq!(policies.limits_digest, other.limits_digest);
    let [remark] = &other.warnings[..] else { panic!() };
    assert!(
        remark
            .to_string()
            .contains(":1: warning: every user of this machine can read the salt file ")
    );
}

#[test]
fn a_user_without_a_password_gets_a_warning() {
    let warnings = |more: &str| {
        let store = format!("url = \"redis://gcra@a\"\n{more}");
        sentences(&read(Path::new("x.toml"), &store).unwrap().warnings)
    };
    let [user] = &warnings("")[..] else { panic!() };
    let begins = "x.toml:1: warning: the address of the store names the user 'gcra' and there";
    assert!(user.starts_with(begins), "{user}");
    assert_eq!(warnings("password_env = \"P\""), [""; 0]);
}

#[test]
fn a_file_that_others_can_read_or_nobody_gets_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let (file, secret) = (directory.path().join("x.toml"), directory.path().join("secret"));
    let warnings = |file: &Path| {
        let text = "url = \"rediss://a\"\npassword_file = \"secret\"\nca = \"ca.pem\"";
        read(file, text).unwrap().warnings
    };
    let [password, ca] = &warnings(&file)[..] else { panic!() };
    assert!(password.contains(":3: warning: cannot read the password file "), "{password}");
    assert!(ca.contains(":4: warning: cannot read the certificate file "), "{ca}");

    fs::write(directory.path().join("ca.pem"), "").unwrap();
    for (name, mode) in [("me.pem", 0o644), ("me.key", 0o604)] {
        let path = directory.path().join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let text = "url = \"rediss://a\"\ncertificate = \"me.pem\"\n\
                certificate_key = \"me.key\"";
    let [key] = &read(&file, text).unwrap().warnings[..] else { panic!() };
    assert!(key.contains(":4: warning: every user of this machine can read the key file "));
    for (text, mode, said) in [
        ("geheim\n", 0o644, Some(": warning: every user of this machine can read the pass")),
        ("geheim\n", 0o640, None),
        ("", 0o600, Some("has no password; write it in the first line")),
        ("\ngeheim\n", 0o600, Some("has no password; write it in the first line")),
    ] {
        fs::write(&secret, text).unwrap();
        fs::set_permissions(&secret, Permissions::from_mode(mode)).unwrap();
        let warnings = warnings(&file);
        assert_eq!(warnings.len(), usize::from(said.is_some()), "{warnings:?}");
        assert!(warnings.iter().all(|it| said.is_some_and(|said| it.contains(said))));
        assert!(!sentences(&warnings).concat().contains("geheim"));
    }
}
