//! A client of HTTP/2 that sends one request after the other on a connection.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use crate::support::Client;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;

/// The flag of a frame that ends its stream, or acknowledges.
const END: u8 = 1;

/// `GET http://test/`, in the numbers of HPACK's static table.
const GET: [u8; 9] = *b"\x82\x86\x84\x41\x04test";

pub(crate) struct Http2 {
    client: Client,
    connection: Option<(TcpStream, u32)>,
}

impl Http2 {
    pub(crate) fn new(client: Client) -> Self {
        Self { client, connection: None }
    }

    /// The status of the answer.
    pub(crate) fn get(&mut self) -> io::Result<u16> {
        let (mut connection, stream) = match self.connection.take() {
            Some(known) => known,
            None => {
                let mut connection = self.client.connect()?;
                connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
                write(&mut connection, SETTINGS, 0, 0, &[])?;
                // The answers of a connection have less than 2 GiB.
                write(&mut connection, WINDOW_UPDATE, 0, 0, &0x7fff_0000_u32.to_be_bytes())?;
                (connection, 1)
            }
        };
        // The headers are complete, too.
        write(&mut connection, HEADERS, END | 4, stream, &GET)?;
        let (mut status, mut goes_away) = (None, false);
        loop {
            let mut head = [0; 9];
            connection.read_exact(&mut head)?;
            let [a, b, c, kind, flags, on @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
            connection.read_exact(&mut payload)?;
            let is_mine = u32::from_be_bytes(on) == stream;
            match kind {
                HEADERS if is_mine => status = Some(status_of(&payload)?),
                RST_STREAM if is_mine => return Err(io::ErrorKind::ConnectionReset.into()),
                SETTINGS | PING if flags & END == 0 => {
                    let echoed = if kind == PING { &payload[..] } else { &[] };
                    write(&mut connection, kind, END, 0, echoed)?;
                }
                GOAWAY => {
                    let last = payload.first_chunk().map_or(0, |last| u32::from_be_bytes(*last));
                    goes_away = true;
                    if last < stream {
                        return Err(io::ErrorKind::ConnectionReset.into());
                    }
                }
                _ => {}
            }
            if is_mine && matches!(kind, HEADERS | DATA) && flags & END != 0 {
                break;
            }
        }
        if !goes_away {
            self.connection = Some((connection, stream + 2));
        }
        status.ok_or(io::ErrorKind::InvalidData.into())
    }
}

/// The status at the beginning of a block of headers: HAProxy writes it first.
fn status_of(block: &[u8]) -> io::Result<u16> {
    let digits = match block {
        [0x88, ..] => return Ok(200),
        // A literal behind the name `:status`, with or without an entry of the dynamic table.
        [0x48 | 0x08, 3, digits @ ..] => digits.get(..3),
        _ => None,
    };
    let status = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    status.ok_or_else(|| io::Error::other(format!("headers {block:02x?}")))
}

fn write(to: &mut TcpStream, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[..], &[kind, flags], &stream.to_be_bytes()].concat();
    to.write_all(&[&head, payload].concat())
}
