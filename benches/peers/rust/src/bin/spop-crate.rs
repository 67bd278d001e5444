//! The spop crate with tokio, as its own example `agent_tcp` is written: frames through a
//! `Framed`, each ACK sent when it is made. The example prints each frame; this doesn't.

use futures::{SinkExt as _, StreamExt as _};
use peers::{BoxedStream, Listener};
use spop::actions::VarScope;
use spop::frame::{FramePayload, FrameType};
use spop::frames::{Ack, AgentHello, FrameCapabilities, HaproxyHello};
use spop::types::TypedData;
use spop::{MAX_FRAME_SIZE_LIMIT, SpopCodec};
use tokio_util::codec::Framed;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let listener = Listener::from_args().await?;
    loop {
        tokio::spawn(serve(listener.accept().await?));
    }
}

async fn serve(stream: BoxedStream) -> Option<()> {
    let mut socket = Framed::new(stream, SpopCodec::default());
    while let Some(Ok(frame)) = socket.next().await {
        match frame.frame_type() {
            FrameType::HaproxyHello => {
                let hello = HaproxyHello::try_from(frame.payload()).ok()?;
                let max_frame_size = hello.negotiate_max_frame_size(MAX_FRAME_SIZE_LIMIT).ok()?;
                socket.codec_mut().set_max_frame_size(max_frame_size);
                let version = hello.negotiate_version()?;
                let capabilities = vec![FrameCapabilities::Pipelining];
                let hello = AgentHello { version, max_frame_size, capabilities };
                socket.send(Box::new(hello)).await.ok()?;
            }
            FrameType::Notify => {
                let mut ack = Ack::new(frame.metadata().stream_id, frame.metadata().frame_id);
                if let FramePayload::ListOfMessages(messages) = &frame.payload() {
                    for message in *messages {
                        if message.name == "check"
                            && let Some(TypedData::IPv4(ip)) = message.args.get("ip")
                        {
                            ack = ack.set_var(VarScope::Transaction, "blocked", ip.is_broadcast());
                        }
                    }
                }
                socket.send(Box::new(ack)).await.ok()?;
            }
            _ => return None,
        }
    }
    None
}
