//! A common design: a tokio task for each NOTIFY, an unbounded channel for the
//! answers, and one task that takes all that have gathered and writes them at once. With mimalloc,
//! because all of this allocates.

use bytes::{Buf as _, Bytes, BytesMut};
use mimalloc::MiMalloc;
use peers::{Listener, ReadHalf, WriteHalf};
use spop_codec::{AckWriter, Frame, Scope, Value, VarName, decode, encode_agent_hello};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const MAX_FRAME_SIZE: u32 = 16_380;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = Listener::from_args().await?;
    loop {
        let (reader, writer) = listener.accept_halves().await?;
        let (answers, gathered) = unbounded_channel();
        tokio::spawn(write(writer, gathered));
        tokio::spawn(read(reader, answers));
    }
}

/// Cuts what arrives into frames. Each NOTIFY gets a task; its bytes are shared with the buffer,
/// not copied.
async fn read(mut reader: ReadHalf, answers: UnboundedSender<Bytes>) -> Option<()> {
    let mut input = BytesMut::with_capacity(64 * 1024);
    loop {
        while let Some(length) = input.first_chunk() {
            let whole = 4 + u32::from_be_bytes(*length) as usize;
            if whole > 4 + MAX_FRAME_SIZE as usize {
                return None;
            }
            if input.len() < whole {
                break;
            }
            let frame = input.split_to(whole).freeze();
            let answers = answers.clone();
            tokio::spawn(async move { answer(&frame).map(|answer| answers.send(answer)) });
        }
        if input.capacity() - input.len() < 4096 {
            input.reserve(64 * 1024);
        }
        if reader.read_buf(&mut input).await.ok()? == 0 {
            return None;
        }
    }
}

fn answer(frame: &[u8]) -> Option<Bytes> {
    let mut out = [0; 128];
    let length = match decode(frame, MAX_FRAME_SIZE).ok()??.0 {
        Frame::HaproxyHello(_) => {
            encode_agent_hello(&mut out, MAX_FRAME_SIZE, "pipelining").ok()?
        }
        Frame::Notify(notify) => {
            let mut ack = AckWriter::new(&mut out, notify.id, MAX_FRAME_SIZE).ok()?;
            for message in notify.messages().filter(|message| message.name == b"check") {
                if let Some(Value::Ipv4(ip)) = message.arg(b"ip") {
                    let name = VarName::new("blocked").ok()?;
                    ack.set_var(Scope::Transaction, name, ip.is_broadcast().into()).ok()?;
                }
            }
            ack.finish()
        }
        _ => return None,
    };
    Some(Bytes::copy_from_slice(&out[..length]))
}

async fn write(mut writer: WriteHalf, mut gathered: UnboundedReceiver<Bytes>) -> Option<()> {
    let mut output = BytesMut::with_capacity(64 * 1024);
    while let Some(answer) = gathered.recv().await {
        output.extend_from_slice(&answer);
        while output.len() < 64 * 1024
            && let Ok(answer) = gathered.try_recv()
        {
            output.extend_from_slice(&answer);
        }
        while output.has_remaining() {
            writer.write_buf(&mut output).await.ok()?;
        }
        output.clear();
    }
    None
}
