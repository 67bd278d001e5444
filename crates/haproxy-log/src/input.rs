//! A log: a file or a stream, compressed or not.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::json_list::JsonList;

/// A log: a file, or a stream such as standard input. gzip and zstd are recognized by their first
/// bytes.
pub struct Input {
    name: String,
    path: Option<PathBuf>,
    /// An input that can be read only once: the stream, or a path that is not a regular file.
    stream: Mutex<Option<Box<dyn Read + Send>>>,
}

impl std::fmt::Debug for Input {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Input").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The fault of a log that cannot be decompressed from some place on.
pub(crate) const DAMAGED: &str = "its compressed data is damaged or ends early";

/// How much of a log `sample` gives.
const SAMPLE: u64 = 256 << 10;

impl Input {
    /// A file. It can be a named pipe, too.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let name = path.display().to_string();
        Self { name, path: Some(path), stream: Mutex::new(None) }
    }

    /// Standard input.
    pub fn stdin() -> Self {
        Self::stream("standard input", io::stdin())
    }

    /// Anything that can be read once. `name` is what [`BadLine`](crate::BadLine) calls it.
    pub fn stream(name: impl Into<String>, stream: impl Read + Send + 'static) -> Self {
        Self { name: name.into(), path: None, stream: Mutex::new(Some(Box::new(stream))) }
    }

    /// The name of this input.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The first bytes of the log (up to 256 KiB), decompressed, for
    /// [`Format::guess`](crate::Format::guess). [`read`](crate::read()) reads what was taken from
    /// a stream again.
    ///
    /// # Errors
    /// The file cannot be opened or read, or it is compressed
    /// ([`io::ErrorKind::InvalidData`]), but not with gzip or zstd, or is damaged from its first
    /// byte.
    pub fn sample(&self) -> io::Result<Vec<u8>> {
        let read = Arc::new(Mutex::new(Kept { reader: self.open_raw()?, bytes: Vec::new() }));
        let mut sample = Vec::new();
        let opened = decompress(BufReader::new(Keeping(read.clone()))).and_then(|reader| {
            match reader.take(SAMPLE).read_to_end(&mut sample) {
                Err(error) if sample.is_empty() => Err(match error.raw_os_error() {
                    Some(_) => error,
                    None => io::Error::new(io::ErrorKind::InvalidData, DAMAGED),
                }),
                // Damage after the beginning is found again by `read`.
                _ => Ok(()),
            }
        });
        if self.size().is_none()
            && let Some(kept) = Arc::into_inner(read)
        {
            let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
            let again: Box<dyn Read + Send> = Box::new(Cursor::new(kept.bytes).chain(kept.reader));
            *self.stream.lock().unwrap_or_else(PoisonError::into_inner) = Some(again);
        }
        opened.map(|()| sample)
    }

    /// The size of the file as it is stored. `None`: it is none that can be opened again.
    pub(crate) fn size(&self) -> Option<u64> {
        let metadata = self.path.as_ref()?.metadata().ok()?;
        metadata.is_file().then_some(metadata.len())
    }

    fn open_raw(&self) -> io::Result<Box<dyn Read + Send>> {
        let kept = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (kept, &self.path) {
            (Some(stream), _) => Ok(stream),
            (None, Some(path)) if path.is_dir() => {
                Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory, not a log"))
            }
            (None, Some(path)) => Ok(Box::new(File::open(path)?)),
            (None, None) => Err(io::Error::other("it was read already")),
        }
    }

    /// The text of the log, and what was read for it.
    pub(crate) fn open(&self) -> io::Result<(Box<dyn Read + Send>, Arc<Count>)> {
        let count = Arc::new(Count::default());
        let raw = Counted { reader: self.open_raw()?, count: count.clone() };
        Ok((decompress(BufReader::with_capacity(64 << 10, raw))?, count))
    }
}

/// A stream, and what was read of it.
struct Kept {
    reader: Box<dyn Read + Send>,
    bytes: Vec<u8>,
}

struct Keeping(Arc<Mutex<Kept>>);

impl Read for Keeping {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = kept.reader.read(buffer)?;
        kept.bytes.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

/// The bytes that were read of a log as it is stored.
#[derive(Debug, Default)]
pub(crate) struct Count {
    /// Since they were counted last.
    pub(crate) bytes: AtomicU64,
    /// Reading failed, so that an error is not one of the compressed data.
    pub(crate) failed: AtomicBool,
}

struct Counted {
    reader: Box<dyn Read + Send>,
    count: Arc<Count>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer);
        match &read {
            Ok(count) => {
                self.count.bytes.fetch_add(*count as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.count.failed.store(true, Ordering::Relaxed),
        }
        read
    }
}

/// The first bytes of files that this crate cannot decompress.
const OTHER_COMPRESSIONS: [(&[u8], &str); 4] = [
    (b"BZh", "bzip2"),
    (b"\xFD7zXZ\0", "xz"),
    (b"\x04\x22\x4D\x18", "lz4"),
    (b"PK\x03\x04", "zip"),
];

/// The text of a log.
fn decompress(mut raw: impl BufRead + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    // A pipe may give a first byte alone: then it is taken for text.
    let start = raw.fill_buf()?;
    for (magic, name) in OTHER_COMPRESSIONS {
        if start.starts_with(magic) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!(
                    "it is compressed with {name}; decompress it first, and give it as standard \
                     input"
                ),
            ));
        }
    }
    if start.starts_with(b"\x1F\x8B") {
        return Ok(Box::new(JsonList::new(MultiGzDecoder::new(raw))));
    }
    let is_zstd = start.starts_with(b"\x28\xB5\x2F\xFD")
        || (start.len() >= 4 && start[0] & 0xF0 == 0x50 && start[1..4] == *b"\x2A\x4D\x18");
    if is_zstd {
        let text = Zstd { raw, decoder: FrameDecoder::new(), open: false };
        return Ok(Box::new(JsonList::new(text)));
    }
    Ok(Box::new(JsonList::new(raw)))
}

/// The frames of a zstd file, one after the other.
struct Zstd<R> {
    raw: R,
    decoder: FrameDecoder,
    /// Whether the decoder is within a frame.
    open: bool,
}

impl<R: BufRead> Zstd<R> {
    /// Begins the next frame. Returns whether there is one.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.raw.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.raw) {
                Ok(()) => {
                    self.open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(
                    ReadFrameHeaderError::SkipFrame { length, .. },
                )) => {
                    let skipped =
                        io::copy(&mut self.raw.by_ref().take(u64::from(length)), &mut io::sink())?;
                    if skipped < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if self.open {
                if self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                    let some = BlockDecodingStrategy::UptoBytes(128 << 10);
                    self.decoder.decode_blocks(&mut self.raw, some).map_err(io::Error::other)?;
                }
                let count = self.decoder.read(buffer)?;
                if count > 0 {
                    return Ok(count);
                }
                self.open = !self.decoder.is_finished();
            } else if !self.begin()? {
                return Ok(0);
            }
        }
    }
}
