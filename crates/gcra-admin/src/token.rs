//! [`Token`]: an operator shows it for an action. It comes from the file of `--admin-actions`.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use ring::digest::{Digest, SHA256, digest};
use rustix::process::{Uid, geteuid};

/// The fewest characters of a token.
const SHORTEST: usize = 16;

const SCHEME: &[u8] = b"Bearer ";

/// The most characters of a token.
const LONGEST: usize = 4096;

const MOST_BYTES: u64 = 8192;

/// Only a digest of the token is kept.
#[derive(Clone, Copy)]
pub struct Token(Digest);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Reads the token from the first line of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no regular file, or belongs to another user. Other users can
    /// read it, or others than its owner can write it. Or its token is too short or too long.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        use std::io::Read as _;
        let shown = path.display();
        // A link is followed, because Kubernetes makes links for its secrets. Only the file that
        // is opened counts. Without this flag it would wait until somebody writes into a FIFO.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path);
        let file = file.with_context(|| format!("could not read the token of {shown}"))?;
        let metadata = file.metadata().with_context(|| format!("could not examine {shown}"))?;
        ensure!(
            metadata.is_file(),
            "{shown} is not a regular file; write the token of --admin-actions into a file"
        );
        let (owner, user) = (metadata.uid(), geteuid());
        ensure!(
            [Uid::ROOT.as_raw(), user.as_raw()].contains(&owner),
            "{shown} belongs to the user {owner}, who can read and replace the token of \
             --admin-actions; run chown {} {shown}",
            user.as_raw()
        );
        ensure!(
            metadata.mode() & 0o004 == 0,
            "every user of this machine can read the token of --admin-actions; run chmod o-r \
             {shown}"
        );
        ensure!(
            metadata.mode() & 0o022 == 0,
            "other users than its owner can replace the token of --admin-actions; run chmod go-w \
             {shown}"
        );
        ensure!(
            metadata.len() <= MOST_BYTES,
            "{shown} has more than {MOST_BYTES} bytes, so it is not the file of a token"
        );
        let mut text = String::new();
        let read = file.take(MOST_BYTES).read_to_string(&mut text);
        read.with_context(|| format!("could not read the token of {shown}"))?;
        let token = text.lines().next().unwrap_or_default().trim();
        ensure!(
            token.len() >= SHORTEST && token.bytes().all(|byte| byte.is_ascii_graphic()),
            "the first line of {shown} is not a token of at least {SHORTEST} visible ASCII \
             characters; make one with: openssl rand -hex 24"
        );
        ensure!(
            token.len() <= LONGEST,
            "the first line of {shown} has more than {LONGEST} characters, so it is no token"
        );
        Ok(Self::of(token.as_bytes()))
    }

    pub fn of(token: &[u8]) -> Self {
        Self(digest(&SHA256, token))
    }

    /// Whether the headers have the token. The time that this takes depends only on the length of
    /// the sent token.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        let sent = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes).unwrap_or_default();
        let sent = match sent.split_at_checked(SCHEME.len()) {
            // RFC 9110, section 11.1: the name of a scheme has no case.
            Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token,
            _ => &[],
        };
        let sent = Self::of(sent);
        let differing =
            self.0.as_ref().iter().zip(sent.0.as_ref()).fold(0, |all, (a, b)| all | (a ^ b));
        std::hint::black_box(differing) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TOKEN: &str = "correct-horse-battery";

    #[test]
    fn only_a_file_with_a_long_token_is_read_that_others_cannot_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path).map_err(|error| format!("{error:#}"))
        };
        let token = read(&format!(" {TOKEN} \nanother line\n"), 0o600).unwrap();
        let has = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            token.is_in(&headers)
        };
        assert!(has(&format!("Bearer {TOKEN}")));
        for wrong in ["", "Bearer ", TOKEN, "Bearer correct-horse-batterz", "Bearer correct"] {
            assert!(!has(wrong), "{wrong}");
        }
        assert!(!token.is_in(&HeaderMap::new()));
        assert!(!format!("{token:?}").contains("horse"));
        assert!(read("short", 0o600).unwrap_err().contains("openssl rand"));
        assert!(read(&"ä".repeat(20), 0o600).unwrap_err().contains("openssl rand"));
        assert!(read(TOKEN, 0o644).unwrap_err().contains("chmod o-r"));
        for mode in [0o602, 0o620, 0o660, 0o622] {
            assert!(read(TOKEN, mode).unwrap_err().contains("chmod go-w"), "{mode:o}");
        }
        assert!(read(TOKEN, 0o640).is_ok(), "the group may read it");
        let longest = "x".repeat(4096);
        for end in ["", "\n", "\r\n", "\nanother line\n"] {
            let token = read(&format!("{longest}{end}"), 0o600).unwrap();
            assert_eq!(token.0.as_ref(), Token::of(longest.as_bytes()).0.as_ref(), "{end:?}");
        }
        let said = read(&format!("{longest}x\n"), 0o600).unwrap_err();
        assert!(said.contains("more than 4096 characters"), "{said}");
        let said = read(&"x\n".repeat(4097), 0o600).unwrap_err();
        assert!(said.contains("more than 8192 bytes"), "{said}");
        let nothing = Token::read(&directory.path().join("nothing"));
        assert!(nothing.is_err());
        // Nobody writes into the FIFO, so reading it would take forever.
        let fifo = directory.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for no_file in [&fifo, directory.path()] {
            let said = Token::read(no_file).unwrap_err().to_string();
            assert!(said.contains("is not a regular file"), "{said}");
        }
    }
}
