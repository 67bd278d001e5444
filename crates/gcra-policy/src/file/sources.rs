//! The files that a configuration is read from: regular files, bounded in size.

use std::fs::{File, Metadata};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::policy_text::FileOrigin;
use crate::watch::{SeenFile, see};
use gcra_text::sentence;
use gcra_text::sentence::Sentence;

/// The most bytes that a configuration and the lists that it names have together.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

/// The most bytes of the configuration itself: reading TOML takes thirty times its size in memory.
pub(crate) const MAX_TOML_BYTES: u64 = 32 << 20;

/// The files that were read so far.
pub(crate) struct Sources {
    /// Paths of lists are relative to it.
    directory: PathBuf,
    /// Each file that was looked at, in its state before it was read, whether it could be read or
    /// not. A change meanwhile is seen at the next look.
    looked_at: Vec<SeenFile>,
    /// How many bytes further lists may have.
    bytes_left: u64,
    digest: DefaultHasher,
    /// The texts, by which a command makes the same policies later.
    origin: FileOrigin,
    /// The texts that are read again, in the place of the files.
    again: Option<FileOrigin>,
}

impl Sources {
    /// Begins with the text that was read from `path`. Other files are looked for in `folder`.
    /// Lists are read from the texts that were kept in `again`, if it is there.
    pub(crate) fn new(folder: &Path, path: &Path, text: &str, again: Option<&FileOrigin>) -> Self {
        let mut digest = DefaultHasher::new();
        text.hash(&mut digest);
        Self {
            directory: folder.to_owned(),
            looked_at: Vec::new(),
            bytes_left: MAX_BYTES.saturating_sub(text.len() as u64),
            digest,
            origin: FileOrigin::new(path, text),
            again: again.cloned(),
        }
    }

    /// Reads a list that the configuration names. Returns its path, and its text or a sentence
    /// that says why it cannot be read.
    pub(crate) fn read_list(&mut self, file: &str) -> (PathBuf, Result<String, Sentence>) {
        let path = self.path(file);
        self.looked_at.push((path.clone(), see(&path)));
        let text = match &self.again {
            None => read_text(&path, self.bytes_left),
            Some(kept) => {
                kept.list(&path).map(str::to_owned).ok_or_else(|| "it was not kept".into())
            }
        };
        let text = text.inspect(|text| {
            self.bytes_left = self.bytes_left.saturating_sub(text.len() as u64);
            text.hash(&mut self.digest);
            self.origin.add(&path, text);
        });
        (path, text)
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Takes note of the state of a file whose content decides nothing. Returns whether it is to
    /// be read now, and not only when it is needed, as where texts are read again.
    pub(crate) fn look_at(&mut self, path: &Path) -> bool {
        let seen = see(path);
        seen.hash(&mut self.digest);
        self.looked_at.push((path.to_owned(), seen));
        self.again.is_none()
    }

    /// Reads a small file that the configuration names. Returns its path, and at most one byte
    /// more than `most`, or a sentence that says why it cannot be read.
    pub(crate) fn read_bytes(
        &mut self,
        file: &str,
        most: usize,
    ) -> (PathBuf, Result<Vec<u8>, Sentence>) {
        let path = self.path(file);
        self.looked_at.push((path.clone(), see(&path)));
        let read = open(&path).and_then(|(file, _)| {
            let mut bytes = Vec::new();
            let most = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
            file.take(most).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
            bytes.hash(&mut self.digest);
            Ok(bytes)
        });
        (path, read)
    }

    /// The files that were looked at, what was read, and the digest of all text of it.
    pub(crate) fn finish(self) -> (Vec<SeenFile>, FileOrigin, u64) {
        (self.looked_at, self.origin, self.digest.finish())
    }
}

/// Opens a regular file. The error is a sentence without the name of the file.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata), Sentence> {
    const REGULAR: &str = "name a regular file";
    // NONBLOCK: opening a FIFO must not wait for its other end. For a regular file the flag has no
    // effect.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        // A socket cannot be opened at all.
        Err(Errno::NXIO) => return Err(sentence!("it is a socket or a device; {REGULAR}")),
        Err(Errno::ACCESS) => {
            let error = io::Error::from(Errno::ACCESS);
            return Err(sentence!("{error}; the user of the agents must be able to read it"));
        }
        Err(errno) => return Err(io::Error::from(errno).to_string().into()),
    };
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let kind = metadata.file_type();
    if !kind.is_file() {
        let found = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a FIFO",
            () => "a device",
        };
        return Err(sentence!("it is {found}; {REGULAR}"));
    }
    Ok((file, metadata))
}

/// The text of a regular file of at most `most` bytes. The error is a sentence without the name of
/// the file.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String, Sentence> {
    let (file, metadata) = open(path)?;
    read_text_of(file, metadata.len(), most)
}

/// The same, of a file that is no part of the configuration.
pub fn read_text_within(path: &Path, most: u64) -> Result<String, Sentence> {
    let (file, metadata) = open(path)?;
    if metadata.len() > most {
        return Err(sentence!("it is too large: it may have {} MiB", most >> 20));
    }
    read_text_of(file, metadata.len(), most)
}

/// Reads a text of about `length` bytes. The length may be wrong: a file can grow in the meantime,
/// and in /proc it is 0.
pub(crate) fn read_text_of(
    file: impl io::Read,
    length: u64,
    most: u64,
) -> Result<String, Sentence> {
    let mut bytes = Vec::with_capacity(usize::try_from(length.min(most)).unwrap_or(0));
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(sentence!(
            "it is too large: a configuration may have {} MiB, and {} MiB together with its \
             lists; move overrides into lists",
            MAX_TOML_BYTES >> 20,
            MAX_BYTES >> 20
        ));
    }
    if let Some(zero) = bytes.iter().position(|byte| *byte == 0) {
        // Of a character that ASCII has, UTF-16 has the byte and a zero.
        let is_utf16 = bytes.starts_with(b"\xff\xfe")
            || bytes.starts_with(b"\xfe\xff")
            || bytes.chunks_exact(2).take(16).all(|pair| (pair[0] == 0) != (pair[1] == 0));
        if is_utf16 {
            return Err("it is in UTF-16; save it as UTF-8".into());
        }
        let line = 1 + bytes[..zero].iter().filter(|byte| **byte == b'\n').count();
        return Err(sentence!("it is not a text file, because line {line} has a zero byte"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .split(|byte| *byte == b'\n')
            .count();
        sentence!("line {line} is not UTF-8; save the file as UTF-8")
    })
}
